#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::data {

// The permutation that torch.randperm(n) gives on the CPU after torch.manual_seed(seed): same values, same order.
// Only the low 32 bits of the seed matter (checked against torch 2.15.0).
std::vector<std::int64_t> randperm(std::int64_t n, std::uint64_t seed);

}  // namespace ddprun::data
