#include "worker/data/randperm.h"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

namespace ddprun::data {

std::vector<std::int64_t> randperm(std::int64_t n, std::uint64_t seed) {
  std::mt19937 engine(static_cast<std::uint32_t>(seed));
  std::vector<std::int64_t> p(static_cast<std::size_t>(n));
  // ATen switches from one 32-bit draw to a 64-bit one where the modulo bias would become noticeable.
  if (n < static_cast<std::int64_t>(std::numeric_limits<std::uint32_t>::max() / 20)) {
    std::iota(p.begin(), p.end(), std::int64_t{0});
    for (std::int64_t i = 0; i < n - 1; ++i) {
      const auto z = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(n - i));
      std::swap(p[static_cast<std::size_t>(i)], p[static_cast<std::size_t>(i + z)]);
    }
    return p;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t high = engine();
    const std::uint64_t low = engine();
    const auto z = static_cast<std::size_t>(((high << 32) | low) % static_cast<std::uint64_t>(i + 1));
    p[static_cast<std::size_t>(i)] = p[z];
    p[z] = i;
  }
  return p;
}

}  // namespace ddprun::data
