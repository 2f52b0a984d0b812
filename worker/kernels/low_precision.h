#pragma once

#include <memory>

#include "worker/kernels/kernels.h"

namespace ddprun::engine {

// Activations in bf16 or f16 over an f32 backend in host memory: operands are widened, computed with in f32 and rounded
// once. Master weights, statistics and parameter gradients are f32. Proves semantics; slower than f32.
std::unique_ptr<Kernels> make_low_precision(std::unique_ptr<Kernels> f32, DType type);

}  // namespace ddprun::engine
