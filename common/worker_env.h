#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/options.h"
#include "common/rank_slice.h"
#include "common/result.h"
#include "common/types.h"

// The variables that a worker gets from the launcher and reads at its start: one table, both directions.
// Source: torchrun-semantics (torch 2.15) 2.2; ours are the DDPRUN_* ones.
namespace ddprun {

struct WorkerEnv {
  RankSlice slice;  // of its node: WORLD_SIZE, GROUP_RANK, MASTER_ADDR (numeric), TORCHELASTIC_RESTART_COUNT ...
  Rank rank;
  LocalRank local_rank;
  std::int64_t local_world_size = 1;
  std::string role_name = "default";
  std::int64_t role_rank = 0;
  std::int64_t max_restarts = 0;  // TORCHELASTIC_MAX_RESTARTS
  RunId run_id{"none"};           // TORCHELASTIC_RUN_ID
  bool use_agent_store = false;   // TORCHELASTIC_USE_AGENT_STORE, "True" or "False"
  std::string error_file;         // TORCHELASTIC_ERROR_FILE
  int recorder_fd = -1;           // DDPRUN_RECORDER_FD; -1 = none

  // RANK was present: this process was started by a launcher. Otherwise it is a world of one.
  bool launched = false;

  // The same for every worker of a node, but for what a worker's place in the slice decides: that of `local`.
  WorkerEnv of(const RankSlice& its_slice, LocalRank local) const;
};

// NAME=value pairs in a fixed order. `recorder_fd` < 0 leaves its variable out.
std::vector<std::pair<std::string, std::string>> to_environment(const WorkerEnv& env);

// The names of all of them, in the order of to_environment: what a launcher must clear before it sets its own.
std::vector<std::string> worker_env_names();

// Whether srun started this process, or one above it, as a task of a step. Not: a batch script, salloc's shell (Slurm
// numbers their steps from 4294967280 on, where it numbers them), and the shell of `srun --pty`, which is one process
// whatever the step's number of tasks.
bool in_slurm_step(const EnvLookup& env);

// Reads and checks all of them. No RANK: a world of one. GROUP_RANK unset: RANK / LOCAL_WORLD_SIZE.
// Errors: invalid_argument naming the variable, its value and the bound ("RANK=5 but WORLD_SIZE=4").
Result<WorkerEnv> from_environment(const EnvLookup& env);

}  // namespace ddprun
