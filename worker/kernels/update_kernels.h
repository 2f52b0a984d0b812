#pragma once

#include <cstdint>
#include <span>

#include "worker/kernels/device.h"

namespace ddprun::engine {

// A piece of one parameter for the optimizer's single pass. `low` (may be null) receives the low-precision copy.
struct UpdateChunk {
  void* parameter = nullptr;
  void* gradient = nullptr;
  void* state1 = nullptr;  // SGD momentum buffer; AdamW exp_avg
  void* state2 = nullptr;  // AdamW exp_avg_sq
  void* low = nullptr;
  std::int64_t count = 0;
  double decay = 0;  // weight decay of this parameter
};

struct SgdUpdate {
  double lr = 0, momentum = 0, dampening = 0;
  bool nesterov = false, first = false;  // first: momentum buffer = gradient
  double unscale = 1, clip = 1;          // multiplied onto the gradient one after the other
};

struct AdamwUpdate {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^t
  bool decoupled = true;  // decay shrinks the parameter (AdamW); else it is added to the gradient (Adam)
  double unscale = 1, clip = 1;
};

struct GradientNorm {
  double squared = 0;
  bool found_inf = false;  // an element is inf or nan
};

// Optimizer passes; all chunks belong to different memory. Rules of all kernels: see kernels.h.
class UpdateKernels {
 public:
  virtual ~UpdateKernels() = default;

  virtual void sgd(std::span<const UpdateChunk> chunks, const SgdUpdate& update) = 0;
  virtual void adamw(std::span<const UpdateChunk> chunks, const AdamwUpdate& update) = 0;
  // Over gradient * unscale of all chunks.
  virtual GradientNorm gradient_norm(std::span<const UpdateChunk> chunks, double unscale) = 0;
};

}  // namespace ddprun::engine
