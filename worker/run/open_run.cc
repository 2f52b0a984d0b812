#include "worker/run/open_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/log.h"
#include "worker/ranks/launcher_mark.h"
#include "worker/run/model_card.h"
#include "worker/run/resume.h"
#include "worker/run/same_run.h"
#include "worker/run/weights.h"

namespace ddprun::trainer {
namespace {

// Until the first step: one rank may read files while the others wait for it, a little longer than it may take, so that
// they hear its reason.
constexpr std::chrono::seconds kSetupTimeout{600};
constexpr std::chrono::seconds kSetupSpare{60};

// Opening reads whole files of some formats: longer than a batch may take. Data and weights have this each.
std::chrono::milliseconds open_limit(const TrainerConfig& config) { return 2 * config.data.reading.timeout; }

// Phase 1 on each rank: no collective inside.
Result<void> open_local(Run& run, Ranks& ranks) {
  const std::chrono::milliseconds limit = open_limit(run.config);
  auto data = open_run_data(run.config, ranks.rank(), ranks.world_size(), limit);
  if (!data) return std::move(data).error();
  run.data = std::move(*data);
  auto made = open_model(run.config, ranks, limit, run.model);
  if (!made) return made;
  return start_loaders(run.config, run.data);
}

std::vector<checkpoint::TensorShape> model_tensors(const engine::ParameterStore& store) {
  std::vector<checkpoint::TensorShape> tensors;
  for (const engine::Parameter& p : store.parameters()) {
    const auto extents = p.shape.extents();
    tensors.push_back({p.name, tensor_type(p.dtype), {extents.begin(), extents.end()}, p.size_bytes()});
  }
  return tensors;
}

std::vector<checkpoint::TensorShape> optimizer_tensors(optim::Optimizer& optimizer) {
  std::vector<checkpoint::TensorShape> tensors;
  for (const optim::StateTensor& t : optimizer.state()) {
    const auto extents = t.shape.extents();
    tensors.push_back({optimizer_tensor_name(t),
                       tensor_type(t.dtype),
                       {extents.begin(), extents.end()},
                       static_cast<std::size_t>(t.shape.count()) * engine::size_of(t.dtype)});
  }
  return tensors;
}

// directory: null: nothing is saved, or not by this rank.
Result<void> make_writer(Run& run, std::shared_ptr<const checkpoint::CheckpointDirectory> directory) {
  if (directory == nullptr) return {};
  const CheckpointConfig& config = run.config.checkpoint;
  auto writer =
      checkpoint::CheckpointWriter::create(checkpoint::write_into(directory, config.keep), config.timeout,
                                           model_tensors(*run.model.store), optimizer_tensors(*run.model.optimizer));
  if (!writer) return std::move(writer).error();
  run.writer = std::move(*writer);
  const auto mark_best = [directory, wanted = !config.best.empty()](const checkpoint::TrainState& saved) {
    if (!wanted || saved.best.step != saved.step) return;
    auto marked = directory->mark_best(saved.step);
    if (!marked) log_error("{}", marked.error().message());
  };
  run.writer->attach({{kModelConfigFile, model_config_json(run.config.model, run.data.train.dataset->spec())},
                      {kRunFile, traits_to_json(traits_of(run.config, run.data))}},
                     mark_best);
  return {};
}

// Every rank's position and tensors: rank 0's, perhaps from a checkpoint. Collective.
Result<void> take_position(Run& run, Ranks& ranks, const std::vector<std::int64_t>& launchers) {
  StartPoint start;
  Result<void> mine;
  if (ranks.is_root()) {
    auto restored = restore(run.config, run.data.train.dataset->size(), ranks.world_size(), launchers,
                            traits_of(run.config, run.data), kSetupTimeout - kSetupSpare, run.model);
    if (restored) start = std::move(*restored);
    if (!restored) mine = std::move(restored).error();
  }
  auto done = ranks.check_on_all(std::move(mine));
  if (done) done = share_state(ranks, run.config.precision.scale_loss, start, run.model);
  if (done) done = broadcast_model(ranks, run.model, /*with_optimizer=*/start.resumed);
  if (!done) return done;
  run.state = std::move(start.state);
  run.notes.insert(run.notes.end(), start.notes.begin(), start.notes.end());
  return ranks.check_on_all(make_writer(run, std::move(start.directory)));
}

}  // namespace

Result<Run> open_run(const TrainerConfig& config, Ranks& ranks) {
  Run run;
  run.config = config;
  comm::Communicator& communicator = ranks.communicator();
  communicator.set_timeout(std::max<std::chrono::milliseconds>(kSetupTimeout, 2 * open_limit(config) + kSetupSpare));

  Result<void> done = ranks.check_on_all(open_local(run, ranks));
  if (done) done = ranks.check_on_all(same_as_rank_zero(communicator, traits_of(run.config, run.data)));
  if (!done) return std::move(done).error();
  if (!run.model.device_versions.empty()) run.notes.push_back(run.model.device_versions);
  const std::int64_t batch = std::min(run.config.data.batch_size, run.data.sampler->samples_per_rank());
  done = connect_model(run.config, ranks, batch, run.model);
  if (!done) return std::move(done).error();
  auto launchers = gather_launchers(communicator);
  if (!launchers) return std::move(launchers).error();
  done = take_position(run, ranks, *launchers);
  if (!done) return std::move(done).error();
  return run;
}

}  // namespace ddprun::trainer
