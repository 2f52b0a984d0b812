#pragma once

#include <algorithm>
#include <cstddef>

namespace ddprun::comm {

// A tensor cut into parts, one for each of some ranks: part p begins at p * stride; the last ones may be short or
// empty.
struct Cut {
  std::size_t stride = 0;  // elements from one part to the next
  std::size_t total = 0;   // elements

  // Equal parts that end at a cache line, so that no two ranks write to the same one.
  static Cut at_lines(std::size_t total, std::size_t parts, std::size_t element_bytes) {
    constexpr std::size_t kLine = 64;
    const std::size_t line = kLine / element_bytes;
    return Cut{((total + parts - 1) / parts + line - 1) / line * line, total};
  }

  std::size_t begin(std::size_t p) const { return std::min(p * stride, total); }
  std::size_t size(std::size_t p) const { return begin(p + 1) - begin(p); }
};

}  // namespace ddprun::comm
