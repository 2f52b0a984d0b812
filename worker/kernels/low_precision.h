#pragma once

#include <cstdint>
#include <memory>

#include "worker/kernels/kernels.h"

namespace ddprun::engine {

// IEEE half and bfloat16, round to nearest even; nan stays nan, overflow becomes inf.
std::uint16_t to_f16(float value);
float from_f16(std::uint16_t bits);
std::uint16_t to_bf16(float value);
float from_bf16(std::uint16_t bits);

// Activations in bf16 or f16 over an f32 backend in host memory: operands are widened, computed with in f32 and rounded
// once. Master weights, statistics and parameter gradients are f32. Proves semantics; slower than f32.
std::unique_ptr<Kernels> make_low_precision(std::unique_ptr<Kernels> f32, DType type);

}  // namespace ddprun::engine
