#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddprun::engine {

// A piece of memory that is in use from step `first` to step `last`, both included.
struct Lifetime {
  std::size_t size_bytes = 0;
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

struct Placement {
  std::vector<std::size_t> offsets;  // multiples of 64, one per lifetime
  std::size_t total_bytes = 0;
};

// Places pieces in one arena so that no two that live at the same time overlap. Largest first, each at the lowest
// offset that is free for its whole life.
Placement place(std::span<const Lifetime> lifetimes);

}  // namespace ddprun::engine
