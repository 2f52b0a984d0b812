#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/result.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/state.h"

namespace ddprun::checkpoint {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";

struct TensorShape {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;
  std::size_t size_bytes = 0;
};

// Saves in a thread of its own: the caller copies its tensors into the snapshot and goes on.
class CheckpointWriter {
 public:
  // `directory` must outlive this. The snapshot's memory is taken and touched here, in the background.
  CheckpointWriter(const CheckpointDirectory& directory, std::int64_t keep, std::vector<TensorShape> model,
                   std::vector<TensorShape> optimizer);
  ~CheckpointWriter();  // waits for the save in work
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Where to copy the tensors: one address for each of `model`, then of `optimizer`. Waits until the save before is on
  // the disk (so a slow disk slows the training down rather than losing checkpoints).
  const std::vector<std::byte*>& begin();
  // Starts the save of what the addresses of begin() hold.
  void submit(const TrainState& state);

  // Waits for the save in work. The error of the last save that failed and was not asked for yet; what was saved
  // before is untouched by it.
  Result<void> wait();
  // The same without waiting: the outcome of saves that have ended.
  Result<void> poll();
  std::int64_t last_saved_step();  // -1: none yet

 private:
  void run();
  Result<void> save();

  const CheckpointDirectory& directory_;
  const std::int64_t keep_;
  std::vector<TensorShape> model_, optimizer_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t buffer_bytes_ = 0;
  std::vector<std::byte*> places_;
  TrainState state_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = true;  // until the buffer has been touched
  bool submitted_ = false;
  bool stopping_ = false;
  std::optional<Error> error_;
  std::int64_t last_saved_ = -1;
  std::thread thread_;
};

struct LoadedCheckpoint {
  std::string folder;
  TrainState state;
  SafetensorsFile model;
  SafetensorsFile optimizer;
};

// Reads and verifies one checkpoint's folder. Errors name the file.
Result<LoadedCheckpoint> load_checkpoint(const std::string& folder);

struct Resume {
  std::optional<LoadedCheckpoint> checkpoint;  // empty: nothing there yet, start from the beginning
  std::vector<std::string> damage;             // a sentence for each newer checkpoint that was passed over
};

// The newest good checkpoint; newer damaged ones are set aside. Errors: malformed when there are checkpoints and none
// is good; then nothing is changed.
Result<Resume> load_newest(const CheckpointDirectory& directory);

}  // namespace ddprun::checkpoint
