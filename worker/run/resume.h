#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/state.h"
#include "worker/config/config.h"
#include "worker/ranks/ranks.h"
#include "worker/run/run_model.h"
#include "worker/run/same_run.h"

namespace ddprun::trainer {

// Where a run begins.
struct StartPoint {
  checkpoint::TrainState state;
  bool resumed = false;  // `state` is a checkpoint's
  // Rank 0 only:
  std::shared_ptr<const checkpoint::CheckpointDirectory> directory;  // null: no checkpoint.dir
  std::vector<std::string> notes;                                    // what there is to say about it
};

// Rank 0: opens checkpoint.dir, finds the checkpoint to go on from, if there is one, and puts it into the model and the
// optimizer. samples: of the training set; launchers: see gather_launchers(); traits: this run's; limit: how long the
// files may take.
Result<StartPoint> restore(const TrainerConfig& config, std::int64_t samples, std::int64_t world_size,
                           const std::vector<std::int64_t>& launchers, const Traits& traits,
                           std::chrono::milliseconds limit, RunModel& model);
// Rank 0's position to all. Collective. The tensors are broadcast by the caller.
Result<void> share_state(const Ranks& ranks, bool scale_loss, StartPoint& start, RunModel& model);

}  // namespace ddprun::trainer
