#include "worker/run/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/base/file_bytes.h"
#include "worker/base/within.h"
#include "worker/checkpoint/writer.h"
#include "worker/ranks/agree.h"
#include "worker/ranks/launcher_mark.h"
#include "worker/run/weights.h"

namespace ddprun::trainer {
namespace {

struct Chosen {
  std::shared_ptr<const checkpoint::CheckpointDirectory> directory;  // null: no checkpoint.dir
  std::optional<checkpoint::LoadedCheckpoint> checkpoint;            // empty: from the beginning
  std::vector<std::string> notes;
};

// Has this job written into the folder? It began with an empty one then (a full one is refused), so all is its own.
bool is_ours(const checkpoint::CheckpointDirectory& directory, const std::vector<std::int64_t>& steps,
             const std::vector<std::int64_t>& launchers) {
  for (const std::int64_t step : steps) {
    // Whatever is wrong with a file is found, and said, when the checkpoint is loaded.
    auto raw = read_whole(directory.path_of(step) + "/" + checkpoint::kStateFile);
    if (!raw) continue;
    auto state = checkpoint::state_from_json(std::string(reinterpret_cast<const char*>(raw->data()), raw->size()));
    if (state && share_one(state->launchers, launchers)) return true;
  }
  return false;
}

Result<Chosen> choose_checkpoint(const CheckpointConfig& config, const std::vector<std::int64_t>& launchers) {
  Chosen chosen;
  if (!config.dir.empty()) {
    auto directory = checkpoint::CheckpointDirectory::open(config.dir);
    if (!directory) return std::move(directory).error().with_context("checkpoint.dir");
    chosen.directory = std::make_shared<const checkpoint::CheckpointDirectory>(std::move(*directory));
    if (chosen.directory->latest_is_a_folder()) {
      chosen.notes.push_back(
          fmt::format("{}/latest is a folder, not a link (copied by a tool that follows links?): the "
                      "next save makes it a link and keeps the folder as latest-before-step-N",
                      config.dir));
    }
  }
  bool automatic = config.resume == "auto";
  if (!automatic && chosen.directory != nullptr) {
    auto steps = chosen.directory->steps();
    if (!steps) return std::move(steps).error();
    // After a restart, or when a node has joined: none and a path are how the job began, not how it goes on.
    automatic = is_ours(*chosen.directory, *steps, launchers);
  }
  if (automatic && chosen.directory != nullptr) {
    auto newest = checkpoint::load_newest(*chosen.directory);
    if (!newest) return std::move(newest).error();
    chosen.notes.insert(chosen.notes.end(), newest->damage.begin(), newest->damage.end());
    chosen.checkpoint = std::move(newest->checkpoint);
  }
  if (!automatic && chosen.directory != nullptr) {
    auto steps = chosen.directory->steps();
    if (!steps) return std::move(steps).error();
    if (!steps->empty()) {
      return Error(Errc::invalid_argument,
                   fmt::format("checkpoint.dir {} already has checkpoints up to step {}, and checkpoint.resume is {}: "
                               "use resume: auto to go on from them, or another folder",
                               config.dir, steps->back(), config.resume));
    }
  }
  if (!automatic && config.resume != "none") {
    auto loaded = checkpoint::load_from(config.resume);
    if (!loaded) return std::move(loaded).error().with_context("checkpoint.resume");
    chosen.notes.insert(chosen.notes.end(), loaded->damage.begin(), loaded->damage.end());
    chosen.checkpoint = std::move(loaded->checkpoint);
  }
  if (const auto& found = chosen.checkpoint) {
    chosen.notes.push_back(fmt::format("resumed from {} at step {}", found->folder, found->state.step));
  }
  return chosen;
}

// How this run's settings differ from those that the checkpoint was made with: meant, or forgotten.
std::vector<std::string> changes_since(const std::string& folder, const Traits& now) {
  std::vector<std::string> changes;
  auto raw = read_whole(folder + "/" + kRunFile);
  if (!raw) return changes;  // of a version that kept none
  const Traits before = traits_from_json(std::string(reinterpret_cast<const char*>(raw->data()), raw->size()));
  for (const auto& [name, value] : now) {
    const auto found = std::find_if(before.begin(), before.end(), [&name](const auto& t) { return t.first == name; });
    if (found == before.end() || found->second == value) continue;
    changes.push_back(fmt::format("changed since that checkpoint: {}: {} -> {}", name, found->second, value));
  }
  return changes;
}

// A checkpoint that another configuration made.
Error unlike(Error why, const std::string& folder, const char* file) {
  return Error(why.code(),
               fmt::format("{}/{}: {}. To go on from it the configuration must have the model and optimizer "
                           "that made it; to begin anew choose another checkpoint.dir (model.weights takes "
                           "over a {})",
                           folder, file, why.message(), checkpoint::kModelFile));
}

}  // namespace

Result<StartPoint> restore(const TrainerConfig& config, std::int64_t samples, std::int64_t world_size,
                           const std::vector<std::int64_t>& launchers, const Traits& traits,
                           std::chrono::milliseconds limit, RunModel& model) {
  StartPoint start;
  checkpoint::TrainState& state = start.state;
  state.samples = samples;
  state.seed = config.train.seed;
  state.world_size = world_size;
  state.scale = static_cast<float>(model.scaler.scale());
  state.launchers = launchers;
  auto chosen = within<Chosen>(limit, "checkpoint.dir or checkpoint.resume", [config = config.checkpoint, launchers] {
    return choose_checkpoint(config, launchers);
  });
  if (!chosen) return std::move(chosen).error();
  start.directory = std::move(chosen->directory);
  start.notes = std::move(chosen->notes);
  if (!chosen->checkpoint) return start;
  const checkpoint::LoadedCheckpoint& loaded = *chosen->checkpoint;
  if (loaded.state.samples != samples) {
    return Error(Errc::invalid_argument,
                 fmt::format("{} was made with {} training samples, data.train has {}: its place in the epoch means "
                             "nothing here",
                             loaded.folder, loaded.state.samples, samples));
  }
  if (loaded.state.seed != config.train.seed) {
    return Error(Errc::invalid_argument, fmt::format("{} was made with train.seed {}, the configuration says {}",
                                                     loaded.folder, loaded.state.seed, config.train.seed));
  }
  auto done = restore_model(loaded.model, *model.store);
  if (!done) return unlike(std::move(done).error(), loaded.folder, checkpoint::kModelFile);
  done = restore_optimizer(loaded.optimizer, *model.optimizer);
  if (!done) return unlike(std::move(done).error(), loaded.folder, checkpoint::kOptimizerFile);
  for (const std::string& change : changes_since(loaded.folder, traits)) start.notes.push_back(change);
  state = loaded.state;
  // Those of this job that are gone now stay named, so that the job is known by any of them.
  if (!share_one(state.launchers, launchers)) state.launchers.clear();
  std::vector<std::int64_t> all;
  std::set_union(state.launchers.begin(), state.launchers.end(), launchers.begin(), launchers.end(),
                 std::back_inserter(all));
  state.launchers = std::move(all);
  if (config.ddp.reducer.compression.rfind("powersgd", 0) == 0) {
    start.notes.push_back(
        "PowerSGD's error feedback is not in checkpoints and starts anew: the run goes on, not bit for bit");
  }
  start.resumed = true;
  return start;
}

Result<void> share_state(const Ranks& ranks, bool scale_loss, StartPoint& start, RunModel& model) {
  // The state's text, behind a mark of its own: was it read from a checkpoint?
  auto text = text_of_rank_zero(ranks.communicator(), (start.resumed ? "1" : "0") + checkpoint::to_json(start.state));
  if (!text) return std::move(text).error();
  auto state = checkpoint::state_from_json(text->substr(1));
  if (!state) return std::move(state).error().with_context("state from rank 0");
  start.state = std::move(*state);
  start.resumed = text->front() == '1';
  if (start.resumed) {
    model.optimizer->set_steps(start.state.optimizer_steps);
    optim::GradScaler::State scaler = model.scaler.state();
    scaler.scale = start.state.scale;
    scaler.growth_tracker = start.state.growth_tracker;
    if (scale_loss) model.scaler = optim::GradScaler(scaler);
  }
  return {};
}

}  // namespace ddprun::trainer
