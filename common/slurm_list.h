#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

// The short forms in which Slurm writes lists. Pure.
namespace ddprun {

// More hosts than any machine has: what is longer is a mistake, or made to fill our memory.
inline constexpr std::size_t kMaxHosts = 1 << 20;

// "cl[1-3,07-08],gpu5,rack[1-2]n[1-2]-ib" -> cl1 cl2 cl3 cl07 cl08 gpu5 rack1n1-ib rack1n2-ib ..., as
// `scontrol show hostnames` does: leading zeros stay, the last bracket turns fastest.
// Errors: malformed (what, and where in the text).
Result<std::vector<std::string>> expand_host_list(std::string_view text);

// "2,1(x3)" -> 2 1 1 1: a number for each node. Errors: malformed.
Result<std::vector<std::int64_t>> expand_counts(std::string_view text);

}  // namespace ddprun
