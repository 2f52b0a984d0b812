#pragma once

#include <string>

#include "common/result.h"
#include "common/worker_env.h"
#include "worker/config/config.h"
#include "worker/ranks/stop_signal.h"

namespace ddprun::trainer {

// Trains from the newest checkpoint or from the beginning to the end, as one rank of `env`. Gives the process's exit
// code (common/exit_code.h): 0; 75 after a stop signal with the state saved; 143 or 130 after one when there is no
// checkpoint.dir; 78 what a retry cannot mend (data, checkpoints, a loss that is not finite); 1 the rest. Whatever went
// wrong has been said on stderr when it returns, by one rank.
int train(const TrainerConfig& config, const WorkerEnv& env, StopSignal& stop);

}  // namespace ddprun::trainer
