#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "worker/comm/communicator.h"

namespace ddprun::trainer {

// Which launcher started this rank: the random digits of the token that ddprun puts into its workers' environment to
// find them and their descendants again (DDPRUN_JOB_TOKEN, launcher/process/kill_tree.h). A launcher belongs to one job
// and lives as long as its node does in it, through restarts and changes of members: a checkpoint that names one of
// ours was written by this very job. 0: no launcher of ours.
std::int64_t launcher_mark();

// The marks of all ranks' launchers, ascending, each once, without 0. Collective.
Result<std::vector<std::int64_t>> gather_launchers(comm::Communicator& communicator);

bool share_one(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b);  // both ascending

}  // namespace ddprun::trainer
