#pragma once

#include "worker/engine/parameter_store.h"

namespace ddprun::optim {

struct GradientSummary {
  double norm = 0;         // L2 norm of all gradients times `unscale`; inf or nan if there are any
  bool found_inf = false;  // an element is inf or nan
};

// One pass over the gradients of all trainable parameters. Equal on all ranks when the gradients are.
GradientSummary summarise_gradients(const engine::ParameterStore& store, double unscale = 1);

// Factor of torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)); 1 if max_norm is 0 (no clipping).
double clip_factor(double norm, double max_norm);

}  // namespace ddprun::optim
