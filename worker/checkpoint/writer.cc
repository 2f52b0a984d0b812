#include "worker/checkpoint/writer.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "common/check.h"
#include "common/clock.h"

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

// The model's tensors, averaged where there is an average; empty if there is none at all.
std::vector<TensorView> averaged(const std::vector<TensorView>& model, const std::vector<TensorView>& optimizer) {
  constexpr std::string_view kPrefix = "ema.";
  std::vector<TensorView> all = model;
  bool any = false;
  for (TensorView& tensor : all) {
    const auto found = std::find_if(optimizer.begin(), optimizer.end(), [&](const TensorView& candidate) {
      return candidate.name.starts_with(kPrefix) && candidate.name.substr(kPrefix.size()) == tensor.name;
    });
    if (found == optimizer.end()) continue;
    tensor.bytes = found->bytes;
    any = true;
  }
  return any ? all : std::vector<TensorView>();
}

// A save that failed: what can the run go on from? Looked up, since somebody may have removed the folder.
Error add_what_is_there(const Error& why, const CheckpointDirectory& directory) {
  const auto steps = directory.steps();
  const std::string rest = !steps || steps->empty() ? std::string("there is none to go on from")
                                                    : fmt::format("the one of step {} is there", steps->back());
  return Error(why.code(), why.message() + "; " + rest);
}

}  // namespace

WriteCheckpoint write_into(std::shared_ptr<const CheckpointDirectory> directory, std::int64_t keep) {
  return [directory = std::move(directory), keep](std::int64_t step, const std::vector<FileContent>& files) {
    auto written = directory->write(step, files);
    if (!written) return Result<void>(add_what_is_there(std::move(written).error(), *directory));
    directory->prune(keep);
    return written;
  };
}

struct CheckpointWriter::State {
  WriteCheckpoint write;
  std::chrono::milliseconds timeout{};
  std::vector<TensorShape> model, optimizer;
  std::unique_ptr<std::byte[]> buffer;
  std::size_t buffer_bytes = 0;
  std::vector<std::byte*> places;
  TrainState state;
  std::vector<std::pair<std::string, std::string>> more_files;
  std::function<void(const TrainState&)> after_save;

  std::mutex mutex;
  std::condition_variable changed;
  bool busy = true;  // until the buffer has been touched
  bool submitted = false;
  bool stopping = false;
  bool ended = false;
  TimePoint began = SteadyClock::now();  // of the save in work
  std::optional<Error> error;
  std::int64_t last_saved = -1;
  std::thread thread;

  Result<void> save() {
    try {
      Laid laid_model;
      Laid laid_optimizer;
      const std::vector<TensorView> model_views = views(model, places.data());
      const std::vector<TensorView> optimizer_views = views(optimizer, places.data() + model.size());
      lay_out(kModelFile, model_views, laid_model);
      lay_out(kOptimizerFile, optimizer_views, laid_optimizer);
      const std::string json = to_json(state);
      const FileContent state_file{kStateFile, {std::as_bytes(std::span(json))}};
      std::vector<FileContent> files = {laid_model.content, laid_optimizer.content, state_file};
      Laid laid_average;
      const std::vector<TensorView> average_views = averaged(model_views, optimizer_views);
      if (!average_views.empty() && state.optimizer_steps > 0) {
        lay_out(kAverageFile, average_views, laid_average);
        files.push_back(laid_average.content);
      }
      for (const auto& [name, text] : more_files) files.push_back({name, {std::as_bytes(std::span(text))}});
      auto written = write(state.step, files);
      if (written && after_save) after_save(state);
      return written;
    } catch (const std::exception& e) {
      return Error(Errc::system, fmt::format("{}: {}", folder_name(state.step), e.what()));  // no memory left
    }
  }

  void run() {
    // First touch here, so that the first snapshot costs the training no page faults.
    std::memset(buffer.get(), 0, buffer_bytes);
    std::unique_lock lock(mutex);
    busy = false;
    changed.notify_all();
    for (;;) {
      changed.wait(lock, [this] { return submitted || stopping; });  // the destructor ends it
      if (!submitted) break;
      lock.unlock();
      Result<void> saved = save();
      lock.lock();
      if (saved) {
        last_saved = state.step;
      } else {
        error = std::move(saved).error();
      }
      submitted = busy = false;
      changed.notify_all();
    }
    ended = true;
    changed.notify_all();
  }

  Result<void> wait_idle(std::unique_lock<std::mutex>& lock) {
    if (changed.wait_until(lock, began + timeout, [this] { return !busy; })) return {};
    if (!submitted) {
      return Error(Errc::timed_out,
                   fmt::format("the {:.1f} MB of memory for a checkpoint's copy could not be had within {} s "
                               "(checkpoint.timeout_s): is the machine out of memory?",
                               static_cast<double>(buffer_bytes) / 1e6, timeout.count() / 1000));
    }
    return Error(
        Errc::timed_out,
        fmt::format("{} has not been written after {} s (checkpoint.timeout_s): its file system does not answer",
                    folder_name(state.step), timeout.count() / 1000));
  }
};

CheckpointWriter::CheckpointWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::create(WriteCheckpoint write,
                                                                   std::chrono::milliseconds timeout,
                                                                   std::vector<TensorShape> model,
                                                                   std::vector<TensorShape> optimizer) {
  auto state = std::make_shared<State>();
  State& s = *state;
  s.write = std::move(write);
  s.timeout = timeout;
  s.model = std::move(model);
  s.optimizer = std::move(optimizer);
  for (const auto* list : {&s.model, &s.optimizer}) {
    for (const TensorShape& tensor : *list) s.buffer_bytes += padded(tensor.size_bytes);
  }
  s.buffer.reset(new (std::nothrow) std::byte[s.buffer_bytes + 1]);  // not touched here
  if (s.buffer == nullptr) {
    return Error(Errc::system, fmt::format("no memory for the {:.1f} MB of a checkpoint's copy",
                                           static_cast<double>(s.buffer_bytes) / 1e6));
  }
  std::byte* at = s.buffer.get();
  for (const auto* list : {&s.model, &s.optimizer}) {
    for (const TensorShape& tensor : *list) {
      s.places.push_back(at);
      at += padded(tensor.size_bytes);
    }
  }
  try {
    s.thread = std::thread([state] { state->run(); });
  } catch (const std::system_error& e) {
    return Error(Errc::system, fmt::format("cannot start the thread that writes checkpoints: {}", e.what()));
  }
  ::pthread_setname_np(s.thread.native_handle(), "checkpoint");
  return std::unique_ptr<CheckpointWriter>(new CheckpointWriter(std::move(state)));
}

CheckpointWriter::~CheckpointWriter() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.stopping = true;
  s.changed.notify_all();
  s.changed.wait_until(lock, std::max(s.began + s.timeout, SteadyClock::now() + std::chrono::seconds(1)),
                       [&s] { return s.ended; });
  const bool ended = s.ended;
  lock.unlock();
  if (ended) {
    s.thread.join();
  } else {
    s.thread.detach();
  }
}

void CheckpointWriter::attach(std::vector<std::pair<std::string, std::string>> files,
                              std::function<void(const TrainState&)> saved) {
  std::lock_guard lock(state_->mutex);
  CHECK(!state_->submitted, "attach() comes before the first save");
  state_->more_files = std::move(files);
  state_->after_save = std::move(saved);
}

Result<const std::vector<std::byte*>*> CheckpointWriter::begin() {
  std::unique_lock lock(state_->mutex);
  auto idle = state_->wait_idle(lock);
  if (!idle) return std::move(idle).error();
  return static_cast<const std::vector<std::byte*>*>(&state_->places);
}

void CheckpointWriter::submit(const TrainState& state) {
  {
    std::lock_guard lock(state_->mutex);
    CHECK(!state_->busy, "begin() comes before submit()");
    state_->state = state;
    state_->began = SteadyClock::now();
    state_->busy = state_->submitted = true;
  }
  state_->changed.notify_all();
}

Result<void> CheckpointWriter::wait() {
  {
    std::unique_lock lock(state_->mutex);
    auto idle = state_->wait_idle(lock);
    if (!idle) return idle;
  }
  return poll();
}

Result<void> CheckpointWriter::poll() {
  std::lock_guard lock(state_->mutex);
  if (!state_->error) return {};
  Error error = *std::move(state_->error);
  state_->error.reset();
  return error;
}

bool CheckpointWriter::hangs() {
  std::lock_guard lock(state_->mutex);
  return state_->busy && SteadyClock::now() >= state_->began + state_->timeout;
}

std::int64_t CheckpointWriter::last_saved_step() {
  std::lock_guard lock(state_->mutex);
  return state_->last_saved;
}

Result<LoadedCheckpoint> load_checkpoint(const std::string& folder) {
  auto files = read_checkpoint(folder);
  if (!files) return std::move(files).error();
  const auto take = [&](const char* name) -> Result<std::vector<std::byte>> {
    const auto found = files->find(name);
    if (found == files->end()) return Error(Errc::malformed, fmt::format("{}: has no {}", folder, name));
    return std::move(found->second);
  };
  auto text = take(kStateFile);
  if (!text) return std::move(text).error();
  auto state = state_from_json(std::string(reinterpret_cast<const char*>(text->data()), text->size()));
  if (!state) return std::move(state).error().with_context(folder + "/" + kStateFile);
  LoadedCheckpoint loaded;
  loaded.folder = folder;
  loaded.state = std::move(*state);
  for (const auto& [name, into] :
       {std::pair{kModelFile, &loaded.model}, std::pair{kOptimizerFile, &loaded.optimizer}}) {
    auto bytes = take(name);
    if (!bytes) return std::move(bytes).error();
    auto file = SafetensorsFile::parse(std::move(*bytes), folder + "/" + name);
    if (!file) return std::move(file).error();
    *into = std::move(*file);
  }
  return loaded;
}

Result<Resume> load_from(const std::string& folder) {
  const auto is_checkpoint = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path + "/" + kChecksumFile, ignored);
  };
  Resume resume;
  std::vector<std::string> candidates;
  if (is_checkpoint(folder)) {
    candidates.push_back(folder);
  } else if (auto steps = steps_in(folder)) {
    for (auto step = steps->rbegin(); step != steps->rend(); ++step) {
      candidates.push_back(folder + "/" + folder_name(*step));
    }
  }
  if (candidates.empty() && is_checkpoint(folder + "/latest")) candidates.push_back(folder + "/latest");
  for (const std::string& candidate : candidates) {
    auto loaded = load_checkpoint(candidate);
    if (loaded) {
      resume.checkpoint = std::move(*loaded);
      return resume;
    }
    const Errc code = loaded.error().code();
    if (candidates.size() == 1 || (code != Errc::malformed && code != Errc::not_found)) {
      return std::move(loaded).error();
    }
    resume.damage.push_back(fmt::format("{} is damaged: {}", candidate, loaded.error().message()));
  }
  if (candidates.empty()) {
    return Error(Errc::not_found, fmt::format("{} is no checkpoint, nor a folder of them (it has no '{}' and no "
                                              "'step-N')",
                                              folder, kChecksumFile));
  }
  return Error(Errc::malformed, fmt::format("{}: none of its {} checkpoints is good ({})", folder, candidates.size(),
                                            resume.damage.front()));
}

Result<Resume> load_newest(const CheckpointDirectory& directory) {
  auto steps = directory.steps();
  if (!steps) return std::move(steps).error();
  Resume resume;
  std::vector<std::int64_t> damaged;
  for (auto it = steps->rbegin(); it != steps->rend(); ++it) {
    auto loaded = load_checkpoint(directory.path_of(*it));
    if (!loaded) {
      const Errc code = loaded.error().code();
      // Only what the file system gave us and is wrong is damage. A file that cannot be read just now may be sound.
      if (code != Errc::malformed && code != Errc::not_found) {
        return std::move(loaded).error().with_context("cannot read a checkpoint, and nothing was changed");
      }
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
