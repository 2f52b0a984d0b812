#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/engine_task.h"
#include "common/options.h"
#include "common/result.h"
#include "common/worker_env.h"
#include "worker/ranks/own_store.h"

namespace ddprun::trainer {

// A world that no ddprun started.
struct World {
  WorkerEnv env;
  std::unique_ptr<OwnStore> store;  // of rank 0; must outlive the training
};

// srun, mpirun or mpiexec started several trainers: they are one world. Task 0 serves the store
// (common/engine_meeting.h) and hands out the ranks. Rank 0 says how many they are, and that nobody restarts them.
// Collective over the tasks. Errors: timed_out (who has not come), those of meet() and OwnStore::serve(),
// invalid_argument (lay_out()).
Result<World> join_engine_world(const EngineTask& task);

// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are given, by hand or by a launcher without a store: rank 0 serves it,
// unless TORCHELASTIC_USE_AGENT_STORE=True, or somebody serves at that port here already. Errors: those of serve().
Result<std::unique_ptr<OwnStore>> serve_given_world(const WorkerEnv& env);

}  // namespace ddprun::trainer
