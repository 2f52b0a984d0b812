// The kernels, compiled once for each instruction set by reduce_kernels_{baseline,avx2,avx512}.cc. Everything has
// internal linkage: an inline function that the linker shared between those files could be one that this CPU lacks.
#include <cstddef>
#include <cstdint>

#include "worker/comm/reduce_kernel_sets.h"
#include "worker/tensor/half.h"

namespace {

using ddprun::comm::DType;
using ddprun::comm::Reduce;
using ddprun::comm::ReduceArgs;

struct Bf16 {
  using Storage = std::uint16_t;
  using Sum = float;
  static inline float load(std::uint16_t v) { return ddprun::bf16_to_f32(v); }
  static inline std::uint16_t store(float v) { return ddprun::f32_to_bf16(v); }
};
struct F16 {
  using Storage = std::uint16_t;
  using Sum = float;
  static inline float load(std::uint16_t v) { return ddprun::f16_to_f32(v); }
  static inline std::uint16_t store(float v) { return ddprun::f32_to_f16(v); }
};
template <typename T>
struct Plain {
  using Storage = T;
  using Sum = T;
  static inline T load(T v) { return v; }
  static inline T store(T v) { return v; }
};

struct SumOp {
  static inline float apply(float a, float b) { return a + b; }
  static inline double apply(double a, double b) { return a + b; }
  static inline std::int32_t apply(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
  static inline std::int64_t apply(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
struct MinOp {
  template <typename T>
  static inline T apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};
struct MaxOp {
  template <typename T>
  static inline T apply(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};

// Elements at a time: 4 KiB of f32 stay in the first-level cache over all passes.
constexpr std::size_t kTile = 1024;

template <typename E, typename Op>
void combine(const void* const* sources, std::size_t first, std::size_t n, std::size_t at, std::size_t count,
             typename E::Sum* out) {
  using Storage = typename E::Storage;
  const auto* a = static_cast<const Storage*>(sources[first]) + at;
  if (n == 1) {
    for (std::size_t i = 0; i < count; ++i) out[i] = E::load(a[i]);
    return;
  }
  if (n == 2) {
    const auto* b = static_cast<const Storage*>(sources[first + 1]) + at;
    for (std::size_t i = 0; i < count; ++i) out[i] = Op::apply(E::load(a[i]), E::load(b[i]));
    return;
  }
  if ((n & (n - 1)) == 0) {
    typename E::Sum right[kTile];
    combine<E, Op>(sources, first, n / 2, at, count, out);
    combine<E, Op>(sources, first + n / 2, n / 2, at, count, right);
    for (std::size_t i = 0; i < count; ++i) out[i] = Op::apply(out[i], right[i]);
    return;
  }
  combine<E, Op>(sources, first, 2, at, count, out);
  for (std::size_t s = first + 2; s < first + n; ++s) {
    const auto* next = static_cast<const Storage*>(sources[s]) + at;
    for (std::size_t i = 0; i < count; ++i) out[i] = Op::apply(out[i], E::load(next[i]));
  }
}

template <typename S>
void divide(S* values, std::size_t count, int divisor) {
  const bool power_of_two = (divisor & (divisor - 1)) == 0;
  if (power_of_two && S(0.5) != S(0)) {  // floats: multiplying is exact and faster
    const S factor = S(1) / static_cast<S>(divisor);
    for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
  } else {
    for (std::size_t i = 0; i < count; ++i) values[i] /= static_cast<S>(divisor);
  }
}

// The case that matters most, in one sweep: two ranks in place.
template <typename E, typename Op>
void pair_in_place(typename E::Storage* a, typename E::Storage* b, std::size_t count, typename E::Sum factor) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const typename E::Storage v = E::store(Op::apply(E::load(a[i]), E::load(b[i])) * factor);
    a[i] = v;
    b[i] = v;
  }
}

template <typename E, typename Op>
void reduce_typed(const ReduceArgs& args) {
  using Storage = typename E::Storage;
  using Sum = typename E::Sum;
  const bool power_of_two = (args.divisor & (args.divisor - 1)) == 0;
  if (args.source_count == 2 && args.destination_count == 2 && args.sources[0] == args.destinations[0] &&
      args.sources[1] == args.destinations[1] && (args.divisor == 1 || (power_of_two && Sum(0.5) != Sum(0)))) {
    pair_in_place<E, Op>(static_cast<Storage*>(args.destinations[0]), static_cast<Storage*>(args.destinations[1]),
                         args.count, Sum(1) / static_cast<Sum>(args.divisor));
    return;
  }
  Sum tile[kTile];
  for (std::size_t at = 0; at < args.count; at += kTile) {
    const std::size_t n = args.count - at < kTile ? args.count - at : kTile;
    combine<E, Op>(args.sources, 0, args.source_count, at, n, tile);
    if (args.divisor > 1) divide(tile, n, args.divisor);
    for (std::size_t d = 0; d < args.destination_count; ++d) {
      auto* to = static_cast<Storage*>(args.destinations[d]) + at;
      for (std::size_t i = 0; i < n; ++i) to[i] = E::store(tile[i]);
    }
  }
}

template <typename E>
void reduce_op(const ReduceArgs& args) {
  switch (args.op) {
    case Reduce::sum:
    case Reduce::avg:
      return reduce_typed<E, SumOp>(args);
    case Reduce::min:
      return reduce_typed<E, MinOp>(args);
    case Reduce::max:
      return reduce_typed<E, MaxOp>(args);
  }
}

void reduce_here(const ReduceArgs& args) {
  switch (args.dtype) {
    case DType::f32:
      return reduce_op<Plain<float>>(args);
    case DType::f64:
      return reduce_op<Plain<double>>(args);
    case DType::bf16:
      return reduce_op<Bf16>(args);
    case DType::f16:
      return reduce_op<F16>(args);
    case DType::i32:
      return reduce_op<Plain<std::int32_t>>(args);
    case DType::i64:
      return reduce_op<Plain<std::int64_t>>(args);
  }
}

template <typename E>
void narrow_typed(const float* from, void* to, std::size_t count, float scale) {
  auto* out = static_cast<std::uint16_t*>(to);
  for (std::size_t i = 0; i < count; ++i) out[i] = E::store(from[i] * scale);
}

template <typename E>
void widen_typed(const void* from, float* to, std::size_t count, float scale) {
  const auto* in = static_cast<const std::uint16_t*>(from);
  for (std::size_t i = 0; i < count; ++i) to[i] = E::load(in[i]) * scale;
}

void narrow_here(const float* from, void* to, std::size_t count, DType type, float scale) {
  type == DType::bf16 ? narrow_typed<Bf16>(from, to, count, scale) : narrow_typed<F16>(from, to, count, scale);
}

void widen_here(const void* from, float* to, std::size_t count, DType type, float scale) {
  type == DType::bf16 ? widen_typed<Bf16>(from, to, count, scale) : widen_typed<F16>(from, to, count, scale);
}

}  // namespace
