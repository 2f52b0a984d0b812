#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/checkpoint/state.h"
#include "worker/checkpoint/writer.h"
#include "worker/config/config.h"
#include "worker/ranks/ranks.h"
#include "worker/run/run_data.h"
#include "worker/run/run_model.h"

namespace ddprun::trainer {

// What one rank's run is made of beside the ranks, in the order in which it is made and given up.
struct Run {
  TrainerConfig config;  // with what data and device have filled in
  RunModel model;
  RunData data;
  std::unique_ptr<checkpoint::CheckpointWriter> writer;  // rank 0, if checkpoint.dir is set
  checkpoint::TrainState state;
  std::vector<std::string> notes;  // what rank 0 has to say about the start
};

// Data, model, initial or resumed state, equal on all ranks afterwards. Collective. Errors: all ranks', perhaps told
// already (Ranks::error_is_said()).
Result<Run> open_run(const TrainerConfig& config, Ranks& ranks);

}  // namespace ddprun::trainer
