#pragma once

#include <cstdint>

#include "worker/tensor/rng.h"

namespace ddprun::engine::gpu {

// The random word of element i under `key`: the same Philox counters as engine/rng.cc, so that a mask does not depend
// on the device. A parity test compares the two.
__device__ __forceinline__ std::uint32_t random_word(const RandomKey& key, std::uint64_t i) {
  const std::uint64_t block = i / 4;
  std::uint32_t c0 = static_cast<std::uint32_t>(block);
  std::uint32_t c1 = static_cast<std::uint32_t>(block >> 32) | (key.op << 8);
  std::uint32_t c2 = key.stream;
  std::uint32_t c3 = static_cast<std::uint32_t>(key.step);
  std::uint32_t k0 = static_cast<std::uint32_t>(key.seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const std::uint32_t words[4] = {c0, c1, c2, c3};
  return words[i % 4];
}

// Words below the limit are kept: (1 - p) of all 2^32, the rule of all backends.
inline std::uint64_t dropout_limit(double p) { return static_cast<std::uint64_t>((1.0 - p) * 4294967296.0); }

// Factor of element i: 0 if dropped, `scale` = 1 / (1 - p) if kept.
__device__ __forceinline__ float dropout_factor(const RandomKey& key, std::uint64_t i, std::uint64_t limit,
                                                float scale) {
  return random_word(key, i) < limit ? scale : 0.0f;
}

}  // namespace ddprun::engine::gpu
