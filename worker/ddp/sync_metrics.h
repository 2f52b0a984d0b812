#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/result.h"
#include "worker/comm/communicator.h"

namespace ddprun::ddp {

// Replaces each value by its sum, avg, min or max over the ranks: losses, counts, norms. Collective.
Result<void> sync_metrics(comm::Communicator& communicator, std::span<double> values, comm::Reduce op);

// Fails on every rank unless all gave the same number, e.g. of steps in this epoch: "steps: rank 0 has 100, rank 2 has
// 99". Collective.
Result<void> check_equal(comm::Communicator& communicator, std::string_view what, std::int64_t value);

}  // namespace ddprun::ddp
