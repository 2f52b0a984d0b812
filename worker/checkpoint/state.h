#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace ddprun::checkpoint {

// The best validation so far, by the figure of checkpoint.best, and how long ago it was.
struct BestState {
  double value = 0;
  std::int64_t step = -1;            // -1: none yet
  std::int64_t validated_step = -1;  // of the last validation that was counted
  std::int64_t without_gain = 0;     // validations since the last gain
};

// Where a run stands, beside its tensors: what exact resume needs. All random numbers of a run are keyed by
// (seed, epoch, sample) or (seed, step), so seed and position are the whole state of its generators.
struct TrainState {
  std::int64_t step = 0;     // optimizer steps tried, skipped ones included
  std::int64_t epoch = 0;    // from 0
  std::int64_t cursor = 0;   // entries of the epoch's order that all ranks together have used
  std::int64_t samples = 0;  // size of the training set: the cursor means nothing in another one
  std::uint64_t seed = 0;
  std::int64_t world_size = 1;
  double epoch_loss_sum = 0;  // over the samples of this epoch so far
  std::int64_t epoch_loss_count = 0;
  std::int64_t optimizer_steps = 0;  // updates done
  std::int64_t skipped_steps = 0;
  float scale = 1;  // GradScaler
  std::int32_t growth_tracker = 0;
  // The global batch and the epoch's steps of the world that began the run: the schedule counts in them. 0: not known
  // (written before they were kept).
  std::int64_t schedule_batch = 0, schedule_epoch = 0;
  BestState best;
  std::vector<std::int64_t> launchers;    // marks of the job's launchers (launcher_mark.h), ascending
  std::vector<std::int64_t> index_bytes;  // length of each rank's index file, if they are written
};

std::string to_json(const TrainState& state);
// Errors: malformed, naming what is missing or of the wrong kind; invalid_argument for another version.
Result<TrainState> state_from_json(const std::string& text);

}  // namespace ddprun::checkpoint
