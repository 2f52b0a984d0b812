#pragma once

#include <cstddef>

#include "worker/comm/communicator.h"

namespace ddprun::comm {

// One pass over `count` elements: combines sources[0..n-1] in a fixed order and stores the result to every
// destination. A destination may be one of the sources (same address), not overlap one otherwise.
// Order: n a power of two: pairwise, ((0 1)(2 3))((4 5)(6 7)); else from first to last. 16-bit types combine in f32.
// divisor > 1 (with avg): the sum is divided once by it.
struct ReduceArgs {
  const void* const* sources;
  std::size_t source_count;
  void* const* destinations;
  std::size_t destination_count;
  std::size_t count;
  DType dtype;
  Reduce op;
  int divisor;
};
void reduce(const ReduceArgs& args);

// f32 <-> f16 and bf16, rounding to nearest even; `scale` is applied in f32 before the rounding or after the widening.
void narrow(const float* from, void* to, std::size_t count, DType to_type, float scale);
void widen(const void* from, float* to, std::size_t count, DType from_type, float scale);

}  // namespace ddprun::comm
