#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/engine/parameter_store.h"

namespace ddprun::optim {

enum class OptimizerKind : std::uint8_t {
  sgd,
  adam,   // weight decay is added to the gradient
  adamw,  // weight decay is decoupled
};

// Defaults are torch's (SGD weight_decay 0, AdamW 0.01: the caller's configuration decides).
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::sgd;
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  double average = 0;                // EMA of the parameters with this decay, from the first update on; 0: none
  bool decay_matrices_only = false;  // weight decay on tensors with two or more dimensions only (GPT recipe)
};

// Multiplied onto each gradient, one after the other, before the update: GradScaler's 1/scale, then clipping's factor.
struct GradientFactors {
  double unscale = 1;
  double clip = 1;
};

// One tensor of optimizer state, for checkpoints.
struct StateTensor {
  std::string parameter;  // "conv1.weight"
  std::string kind;       // "momentum_buffer", "exp_avg", "exp_avg_sq" (torch's names), "ema"
  engine::Shape shape;
  engine::DType dtype;
  void* data;  // device memory
};

// Updates all trainable parameters in a single pass over memory. Gradients must be bound in the store before.
class Optimizer {
 public:
  // Errors: invalid_argument naming the value that makes no sense.
  static Result<std::unique_ptr<Optimizer>> create(const OptimizerConfig& config, engine::ParameterStore& store);
  virtual ~Optimizer() = default;

  // Do not call for a skipped step: it would advance the step count.
  virtual void step(double lr, const GradientFactors& factors = {}) = 0;

  // Puts the averaged parameters in the place of the trained ones, and the other way round the second time. Nothing
  // where there is no average, or no update yet.
  virtual void swap_average() = 0;

  virtual std::int64_t steps() const = 0;  // updates done; AdamW's t
  virtual void set_steps(std::int64_t steps) = 0;
  virtual std::vector<StateTensor> state() = 0;
  // Copies between state memory and the host (state().data may be device memory).
  virtual void read(const StateTensor& tensor, void* host) const = 0;
  virtual void write(const StateTensor& tensor, const void* host) = 0;
};

}  // namespace ddprun::optim
