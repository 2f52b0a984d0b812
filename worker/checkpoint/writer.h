#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/state.h"

namespace ddprun::checkpoint {

inline constexpr const char* kModelFile = "model.safetensors";
// The model with averaged parameters, where the optimizer has tensors "ema.<parameter>".
inline constexpr const char* kAverageFile = "model_ema.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";

struct TensorShape {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;
  std::size_t size_bytes = 0;
};

// Puts one checkpoint on the disk; called in the writer's thread.
using WriteCheckpoint = std::function<Result<void>(std::int64_t step, const std::vector<FileContent>& files)>;
// Into this folder; then all but the `keep` newest go. Errors end with the newest checkpoint that is there. The
// function owns a share of the directory.
WriteCheckpoint write_into(std::shared_ptr<const CheckpointDirectory> directory, std::int64_t keep);

// Saves in a thread of its own: the caller copies its tensors into the snapshot and goes on. A disk may hang: no wait
// is without a limit, and a thread that hangs is left behind, with all that it uses.
class CheckpointWriter {
 public:
  // timeout: of one save. The snapshot's memory is taken here and touched in the background. Errors: system when there
  // is not enough, or no thread.
  static Result<std::unique_ptr<CheckpointWriter>> create(WriteCheckpoint write, std::chrono::milliseconds timeout,
                                                          std::vector<TensorShape> model,
                                                          std::vector<TensorShape> optimizer);
  ~CheckpointWriter();  // waits for the save in work, unless it hangs
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Before the first save. files: written with each one (name, content). saved: called in the writer's thread after a
  // save that went well.
  void attach(std::vector<std::pair<std::string, std::string>> files, std::function<void(const TrainState&)> saved);

  // Where to copy the tensors: one address for each of `model`, then of `optimizer`. Waits until the save before is on
  // the disk (so a slow disk slows the training down rather than losing checkpoints). Errors: timed_out, naming the
  // step of the save that hangs.
  Result<const std::vector<std::byte*>*> begin();
  // Starts the save of what the addresses of begin() hold.
  void submit(const TrainState& state);

  // Waits for the save in work. The error of the last save that failed and was not asked for yet, or that of begin();
  // what was saved before is untouched by it.
  Result<void> wait();
  // The same without waiting: the outcome of saves that have ended.
  Result<void> poll();
  // The save in work is beyond its time: tells wait()'s own timed_out from that of a save.
  bool hangs();
  std::int64_t last_saved_step();  // -1: none yet

 private:
  struct State;
  explicit CheckpointWriter(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

struct LoadedCheckpoint {
  std::string folder;
  TrainState state;
  SafetensorsFile model;
  SafetensorsFile optimizer;
};

// Reads and verifies one checkpoint's folder. Errors name the file; malformed or not_found: it is damaged;
// invalid_argument: it is sound, but not for this program (another version, no permission).
Result<LoadedCheckpoint> load_checkpoint(const std::string& folder);

struct Resume {
  std::optional<LoadedCheckpoint> checkpoint;  // empty: nothing there yet, start from the beginning
  std::vector<std::string> damage;             // a sentence for each newer checkpoint that was passed over
};

// The newest good checkpoint; newer damaged ones are set aside. Errors, after which nothing is changed: malformed when
// there are checkpoints and none is good; any other when one cannot be read for a reason that is not damage.
Result<Resume> load_newest(const CheckpointDirectory& directory);

// From a folder that is another run's: a checkpoint, or a folder of them, of which the newest good one is taken (its
// link "latest" may dangle or be a copy). Nothing in it is changed. Errors: not_found when it is neither.
Result<Resume> load_from(const std::string& folder);

}  // namespace ddprun::checkpoint
