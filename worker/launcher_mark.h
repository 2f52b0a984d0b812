#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "common/worker_env.h"
#include "worker/comm/communicator.h"

namespace ddprun::trainer {

// Which launcher process started this rank: a number that no other process has, on any host, or after a reboot. A
// launcher belongs to one job and lives as long as its node does in it, through restarts and changes of members: a
// checkpoint that names one of ours was written by this very job. 0: no launcher, or /proc does not tell.
std::int64_t launcher_mark(const WorkerEnv& env);

// The marks of all ranks' launchers, ascending, each once, without 0. Collective.
Result<std::vector<std::int64_t>> gather_launchers(comm::Communicator& communicator, const WorkerEnv& env);

bool share_one(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b);  // both ascending

}  // namespace ddprun::trainer
