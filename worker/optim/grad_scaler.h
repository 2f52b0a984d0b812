#pragma once

#include <cstdint>

namespace ddprun::optim {

// torch.amp.GradScaler's rule. All ranks feed it what they saw in the reduced gradients, so all of them take the same
// decisions without talking.
class GradScaler {
 public:
  struct State {
    float scale = 65536;
    double growth_factor = 2;
    double backoff_factor = 0.5;
    std::int32_t growth_interval = 2000;
    std::int32_t growth_tracker = 0;
  };

  GradScaler() = default;
  explicit GradScaler(const State& state) : state_(state) {}

  double scale() const { return static_cast<double>(state_.scale); }
  double inverse() const;  // what gradients are multiplied with: float(1 / double(scale))
  void update(bool found_inf);
  const State& state() const { return state_; }

 private:
  State state_;
};

}  // namespace ddprun::optim
