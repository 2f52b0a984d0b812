#include "worker/optim/clip.h"

#include <cmath>

#include "worker/kernels/kernels.h"

namespace ddprun::optim {

GradientSummary summarise_gradients(const engine::ParameterStore& store, double unscale) {
  engine::UpdateKernels& updates = store.kernels();
  const engine::GradientNorm norm = updates.gradient_norm(store.chunks(), unscale);
  return {.norm = std::sqrt(norm.squared), .found_inf = norm.found_inf};
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1 ? 1 : factor;  // nan stays nan
}

}  // namespace ddprun::optim
