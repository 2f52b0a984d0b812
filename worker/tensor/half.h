#pragma once

#include <cstdint>

// 16-bit floats as bits, rounding to nearest even; NaN stays NaN. Branch-free, so that loops vectorise. Internal
// linkage on purpose: see worker/comm/reduce_kernels_impl.h.
namespace ddprun {

static inline float bf16_to_f32(std::uint16_t h) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(h) << 16);
}

static inline std::uint16_t f32_to_bf16(float f) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, f);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (u >> 16) | 0x40u;
  return static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

static inline float f16_to_f32(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t magnitude = h & 0x7fffu;
  // Normal: move the exponent; subnormal: let the float unit normalise; inf and NaN: exponent all ones.
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);
  const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  const std::uint32_t special = (magnitude << 13) | 0x7f800000u;
  std::uint32_t bits = magnitude < 0x0400u ? __builtin_bit_cast(std::uint32_t, small) : normal;
  bits = magnitude >= 0x7c00u ? special : bits;
  return __builtin_bit_cast(float, bits | sign);
}

static inline std::uint16_t f32_to_f16(float f) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, f);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t a = u & 0x7fffffffu;
  // Normal results: rebias and round the 13 bits that go. 65520 and above round to inf.
  const std::uint32_t normal = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13;
  // Results below 2^-14: adding 0.5 makes the float unit round at 2^-24.
  const std::uint32_t small = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, a) + 0.5f) - 0x3f000000u;
  std::uint32_t h = a < 0x38800000u ? small : normal;
  h = a >= 0x477ff000u ? 0x7c00u : h;
  h = a > 0x7f800000u ? 0x7e00u : h;
  return static_cast<std::uint16_t>(h | sign);
}

}  // namespace ddprun
