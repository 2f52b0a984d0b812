#pragma once

#include <cstdint>

namespace ddprun {

// How a collective combines the ranks' elements.
enum class Reduce : std::uint8_t { sum, avg, min, max };

// "sum"
constexpr const char* name_of(Reduce op) {
  switch (op) {
    case Reduce::sum:
      return "sum";
    case Reduce::avg:
      return "avg";
    case Reduce::min:
      return "min";
    case Reduce::max:
      return "max";
  }
  return "unknown reduction";
}

}  // namespace ddprun
