#pragma once

#include <cstdint>
#include <span>

namespace ddprun::data {

struct CodePointRange {
  std::uint32_t first, last;
};

// Ascending, without overlap.
std::span<const CodePointRange> unicode_letters();  // category L
std::span<const CodePointRange> unicode_numbers();  // category N

}  // namespace ddprun::data
