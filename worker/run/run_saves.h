#pragma once

#include <cstdint>

#include "common/result.h"
#include "worker/checkpoint/writer.h"
#include "worker/ranks/ranks.h"
#include "worker/run/run_model.h"
#include "worker/run/run_outputs.h"

namespace ddprun::trainer {

// The checkpoints of a run. Each call is made on every rank at the same step, and is collective when index files are
// written: a checkpoint knows how long they are.
class RunSaves {
 public:
  // writer: null on ranks that save nothing. All but `with_indices` (output.indices are written) are kept.
  RunSaves(const Ranks& ranks, const RunModel& model, checkpoint::TrainState& state,
           checkpoint::CheckpointWriter* writer, const RunOutputs& outputs, bool with_indices)
      : ranks_(ranks), model_(model), state_(state), writer_(writer), outputs_(outputs), with_indices_(with_indices) {}

  // Starts a save of this step; waits for the one before. A save that failed is said and the run goes on: what was
  // saved before is still there, and the next save may find room again. Errors: the save before hangs; the device's.
  Result<void> start();
  // A save whose outcome matters, since the run ends with it: start() and finish().
  Result<void> last();
  // How the save in work ends, if this rank has one.
  Result<void> finish();

  std::int64_t started_at() const { return started_at_; }  // the step of the last save; -1: none yet

 private:
  Result<void> gather_index_bytes();
  Result<void> copy_and_submit();

  const Ranks& ranks_;
  const RunModel& model_;
  checkpoint::TrainState& state_;
  checkpoint::CheckpointWriter* writer_;
  const RunOutputs& outputs_;
  bool with_indices_;
  std::int64_t started_at_ = -1;
};

}  // namespace ddprun::trainer
