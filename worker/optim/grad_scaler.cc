#include "worker/optim/grad_scaler.h"

#include <cmath>

namespace ddprun::optim {

double GradScaler::inverse() const { return static_cast<double>(static_cast<float>(1.0 / scale())); }

void GradScaler::update(bool found_inf) {
  if (found_inf) {
    state_.scale = static_cast<float>(scale() * state_.backoff_factor);
    state_.growth_tracker = 0;
    return;
  }
  if (++state_.growth_tracker == state_.growth_interval) {
    const float grown = static_cast<float>(scale() * state_.growth_factor);
    if (std::isfinite(grown)) state_.scale = grown;
    state_.growth_tracker = 0;
  }
}

}  // namespace ddprun::optim
