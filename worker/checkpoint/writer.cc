#include "worker/checkpoint/writer.h"

#include <fmt/format.h>
#include <pthread.h>

#include <cstring>

#include "common/check.h"
#include "worker/data/file_bytes.h"

namespace ddprun::checkpoint {
namespace {

std::size_t padded(std::size_t size) { return (size + 63) / 64 * 64; }

std::vector<TensorView> views(const std::vector<TensorShape>& tensors, std::byte* const* places) {
  std::vector<TensorView> result;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    result.push_back(TensorView{tensors[i].name, tensors[i].type, tensors[i].shape,
                                std::span<const std::byte>(places[i], tensors[i].size_bytes)});
  }
  return result;
}

// A safetensors file as pieces: the header, then each tensor where it lies.
struct Laid {
  SafetensorsLayout layout;
  FileContent content;
};
void lay_out(const char* name, const std::vector<TensorView>& tensors, Laid& laid) {
  laid.layout = layout_safetensors(tensors, {{"format", "pt"}});
  laid.content.name = name;
  laid.content.pieces.push_back(std::as_bytes(std::span(laid.layout.header)));
  for (const std::size_t i : laid.layout.order) laid.content.pieces.push_back(tensors[i].bytes);
}

}  // namespace

CheckpointWriter::CheckpointWriter(const CheckpointDirectory& directory, std::int64_t keep,
                                   std::vector<TensorShape> model, std::vector<TensorShape> optimizer)
    : directory_(directory), keep_(keep), model_(std::move(model)), optimizer_(std::move(optimizer)) {
  for (const auto* list : {&model_, &optimizer_}) {
    for (const TensorShape& tensor : *list) buffer_bytes_ += padded(tensor.size_bytes);
  }
  buffer_.reset(new std::byte[buffer_bytes_ + 1]);  // not touched here
  std::byte* at = buffer_.get();
  for (const auto* list : {&model_, &optimizer_}) {
    for (const TensorShape& tensor : *list) {
      places_.push_back(at);
      at += padded(tensor.size_bytes);
    }
  }
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), "checkpoint");
}

CheckpointWriter::~CheckpointWriter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointWriter::run() {
  // First touch here, so that the first snapshot costs the training no page faults.
  std::memset(buffer_.get(), 0, buffer_bytes_);
  std::unique_lock lock(mutex_);
  busy_ = false;
  changed_.notify_all();
  for (;;) {
    changed_.wait(lock, [this] { return submitted_ || stopping_; });
    if (!submitted_) return;
    lock.unlock();
    Result<void> saved = save();
    lock.lock();
    if (saved) {
      last_saved_ = state_.step;
    } else {
      error_ = std::move(saved).error();
    }
    submitted_ = busy_ = false;
    changed_.notify_all();
  }
}

Result<void> CheckpointWriter::save() {
  Laid model;
  Laid optimizer;
  const std::vector<TensorView> model_views = views(model_, places_.data());
  const std::vector<TensorView> optimizer_views = views(optimizer_, places_.data() + model_.size());
  lay_out(kModelFile, model_views, model);
  lay_out(kOptimizerFile, optimizer_views, optimizer);
  const std::string state = to_json(state_);
  const FileContent state_file{kStateFile, {std::as_bytes(std::span(state))}};
  auto written = directory_.write(state_.step, {model.content, optimizer.content, state_file});
  if (written) directory_.prune(keep_);
  return written;
}

const std::vector<std::byte*>& CheckpointWriter::begin() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  return places_;
}

void CheckpointWriter::submit(const TrainState& state) {
  {
    std::lock_guard lock(mutex_);
    CHECK(!busy_, "begin() comes before submit()");
    state_ = state;
    busy_ = submitted_ = true;
  }
  changed_.notify_all();
}

Result<void> CheckpointWriter::wait() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
  }
  return poll();
}

Result<void> CheckpointWriter::poll() {
  std::lock_guard lock(mutex_);
  if (!error_) return {};
  Error error = *std::move(error_);
  error_.reset();
  return error;
}

std::int64_t CheckpointWriter::last_saved_step() {
  std::lock_guard lock(mutex_);
  return last_saved_;
}

Result<LoadedCheckpoint> load_checkpoint(const std::string& folder) {
  auto good = verify_checkpoint(folder);
  if (!good) return std::move(good).error();
  auto text = data::read_file(folder + "/" + kStateFile, std::size_t{64} << 20);
  if (!text) return std::move(text).error();
  auto state = state_from_json(std::string(reinterpret_cast<const char*>(text->data()), text->size()));
  if (!state) return std::move(state).error().with_context(folder + "/" + kStateFile);
  auto model = SafetensorsFile::open(folder + "/" + kModelFile);
  if (!model) return std::move(model).error();
  auto optimizer = SafetensorsFile::open(folder + "/" + kOptimizerFile);
  if (!optimizer) return std::move(optimizer).error();
  return LoadedCheckpoint{folder, std::move(*state), std::move(*model), std::move(*optimizer)};
}

Result<Resume> load_newest(const CheckpointDirectory& directory) {
  auto steps = directory.steps();
  if (!steps) return std::move(steps).error();
  Resume resume;
  std::vector<std::int64_t> damaged;
  for (auto it = steps->rbegin(); it != steps->rend(); ++it) {
    auto loaded = load_checkpoint(directory.path_of(*it));
    if (!loaded) {
      resume.damage.push_back(fmt::format("checkpoint {} is damaged: {}", folder_name(*it), loaded.error().message()));
      damaged.push_back(*it);
      continue;
    }
    resume.checkpoint = std::move(*loaded);
    for (const std::int64_t step : damaged) {
      auto moved = directory.set_aside(step);
      if (!moved) return std::move(moved).error();
    }
    return resume;
  }
  if (!damaged.empty()) {
    return Error(Errc::malformed,
                 fmt::format("{}: none of its {} checkpoints is good ({}); nothing was changed. Restore one, or choose "
                             "another checkpoint.dir to begin anew",
                             directory.path(), damaged.size(), resume.damage.front()));
  }
  return resume;
}

}  // namespace ddprun::checkpoint
