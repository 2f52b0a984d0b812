#pragma once

#include <cstdint>

#include "worker/data/dataset.h"

namespace ddprun::data {

// Random numbers of one sample in one epoch: the same for any number of threads, ranks or resumes (splitmix64 over the
// key). Not for cryptography.
class SampleRandom {
 public:
  explicit SampleRandom(const SampleKey& key)
      : state_(
            mix(mix(mix(key.seed) ^ static_cast<std::uint64_t>(key.epoch)) ^ static_cast<std::uint64_t>(key.index))) {}

  std::uint64_t next() { return mix(state_ += 0x9E3779B97F4A7C15ULL); }
  // In [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // In [0, bound); bound > 0. The bias is below bound / 2^64.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }

 private:
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace ddprun::data
