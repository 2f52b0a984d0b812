#include "worker/engine/memory_planner.h"

#include <algorithm>
#include <numeric>

namespace ddprun::engine {

Placement place(std::span<const Lifetime> lifetimes) {
  constexpr std::size_t kAlign = 64;
  Placement result;
  result.offsets.assign(lifetimes.size(), 0);
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lifetimes[a].size_bytes > lifetimes[b].size_bytes; });
  std::vector<std::size_t> placed;  // by offset
  for (std::size_t i : order) {
    const Lifetime& life = lifetimes[i];
    const std::size_t size = (life.size_bytes + kAlign - 1) / kAlign * kAlign;
    std::size_t offset = 0;
    for (std::size_t other : placed) {
      const Lifetime& theirs = lifetimes[other];
      if (theirs.last < life.first || life.last < theirs.first) continue;
      if (offset + size <= result.offsets[other]) break;
      offset = std::max(offset, result.offsets[other] + (theirs.size_bytes + kAlign - 1) / kAlign * kAlign);
    }
    result.offsets[i] = offset;
    result.total_bytes = std::max(result.total_bytes, offset + size);
    if (size > 0) {
      placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                     [&](std::size_t o, std::size_t p) { return o < result.offsets[p]; }),
                    i);
    }
  }
  return result;
}

}  // namespace ddprun::engine
