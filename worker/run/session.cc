#include "worker/run/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/clock.h"
#include "worker/base/crc32c.h"
#include "worker/base/within.h"
#include "worker/comm/factory.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/device/backend.h"
#include "worker/run/agree.h"
#include "worker/run/launcher_mark.h"
#include "worker/run/open_data.h"
#include "worker/run/resume.h"
#include "worker/run/run_error.h"
#include "worker/run/same_run.h"
#include "worker/run/weights.h"

namespace ddprun::trainer {
namespace {

// Opening reads whole files of some formats: longer than a batch may take. Data and weights have this each.
std::chrono::milliseconds open_limit(const TrainerConfig& config) { return 2 * config.data.read_timeout; }

std::vector<ddp::ParameterInfo> parameter_infos(const engine::ParameterStore& store) {
  std::vector<ddp::ParameterInfo> infos;
  for (const engine::Parameter& p : store.parameters()) {
    const auto extents = p.shape.extents();
    infos.push_back(ddp::ParameterInfo{p.name, {extents.begin(), extents.end()}, p.dtype, p.count()});
  }
  return infos;
}

std::vector<comm::Block> state_blocks(const engine::ParameterStore& store, bool buffers_only) {
  std::vector<comm::Block> blocks;
  for (const engine::Parameter& p : store.parameters()) {
    if (!buffers_only || p.buffer) blocks.push_back(comm::Block{p.data, p.count(), p.dtype});
  }
  return blocks;
}

data::LoaderOptions loader_options(const TrainerConfig& config) {
  data::LoaderOptions options;
  options.batch_size = config.data.batch_size;
  options.num_workers = config.data.num_workers;
  options.prefetch_factor = config.data.prefetch_factor;
  options.persistent_workers = config.data.persistent_workers;
  options.seed = config.train.seed;
  options.timeout = config.data.read_timeout;
  return options;
}

// On this process's GPU if it uses one (the communicator decided by the same rule), else on the CPU.
Result<std::unique_ptr<engine::Kernels>> make_kernels(Session& s) {
  auto backend = comm::parse_backend(s.config.ddp.backend);
  if (!backend) return std::move(backend).error();
  auto gpu = comm::find_gpu(*backend);
  if (!gpu) return std::move(gpu).error();
  if (*gpu == nullptr) return engine::make_cpu_kernels(s.config.precision.dtype);
  if (!s.config.data.pin_memory) {
    return Error(Errc::invalid_argument,
                 "data.pin_memory: false cannot be had on a GPU: batches go through page-locked buffers of at most "
                 "32 MiB. Leave the key out");
  }
  auto device = (*gpu)->open(static_cast<int>(s.env.rank.value), static_cast<int>(s.env.local_rank.value));
  if (!device) return std::move(device).error();
  s.device = *device;
  s.notes.push_back((*gpu)->versions());
  s.config.ddp.reducer.cast = [backend = *gpu](comm::DType from, comm::DType to, const void* in, void* out,
                                               std::size_t count) {
    backend->cast(from, to, in, out, static_cast<std::int64_t>(count));
  };
  return (*gpu)->make_kernels(s.config.precision.dtype, s.config.precision.tf32);
}

Result<void> every_rank_has_samples(const DataConfig& data, const data::DistributedSampler& sampler,
                                    const data::SamplerOptions& sampling) {
  if (sampler.samples_per_rank() > 0) return {};
  std::string message = fmt::format(
      "{} training samples leave nothing for each of {} ranks with data.drop_last; use "
      "fewer ranks",
      sampling.samples, sampling.world_size);
  if (data.drop_short_batch) {
    message = fmt::format(
        "{} training samples on {} ranks make no full batch of {}, and data.drop_short_batch drops "
        "what is shorter; use fewer ranks, a smaller data.batch_size or drop_short_batch: false",
        sampling.samples, sampling.world_size, data.batch_size);
  }
  return Error(Errc::invalid_argument, message);
}

// Phase 1 on each rank: no collective inside.
Result<void> open_local(Session& s) {
  struct Opened {
    TrainerConfig config;
    RunData data;
    std::string train, validation;  // fingerprints: reading samples may take as long as opening does
  };
  const auto open = [config = s.config]() mutable -> Result<Opened> {
    auto data = open_run_data(config);
    if (!data) return std::move(data).error();
    const std::uint64_t seed = config.train.seed;
    std::string train = fingerprint(*data->train, config.data.format, seed), validation = "none";
    if (data->validation != nullptr) validation = fingerprint(*data->validation, config.data.format, seed);
    return Opened{std::move(config), std::move(*data), std::move(train), std::move(validation)};
  };
  auto opened = within<Opened>(open_limit(s.config), "data.train or data.validation", open);
  if (!opened) return std::move(opened).error();
  s.config = std::move(opened->config);
  s.train_fingerprint = std::move(opened->train);
  s.validation_fingerprint = std::move(opened->validation);
  s.train_data = std::move(opened->data.train);
  s.validation_data = std::move(opened->data.validation);
  data::SamplerOptions sampling;
  sampling.samples = s.train_data->size();
  sampling.world_size = s.world_size();
  sampling.rank = s.rank();
  sampling.shuffle = s.config.data.shuffle;
  sampling.drop_last = s.config.data.drop_last;
  sampling.whole_batches = s.config.data.drop_short_batch ? s.config.data.batch_size : 0;
  sampling.seed = s.config.train.seed;
  s.sampler = std::make_unique<data::DistributedSampler>(sampling);
  if (auto enough = every_rank_has_samples(s.config.data, *s.sampler, sampling); !enough) return enough;
  auto kernels = make_kernels(s);
  if (!kernels) return std::move(kernels).error();
  s.kernels = std::move(*kernels);
  auto model = engine::build_model(s.config.model, s.config.loss, s.config.data.batch_size);
  if (!model) return std::move(model).error().with_context("model");
  auto store = engine::ParameterStore::create(model->graph, *s.kernels, s.config.train.frozen);
  if (!store) {
    const bool memory = store.error().code() == Errc::system || store.error().code() == Errc::exhausted;
    return std::move(store).error().with_context(memory ? "model" : "model.frozen");
  }
  s.store = std::move(*store);
  engine::initialise(s.config.model, *s.store, s.config.train.seed);
  if (!s.config.weights.empty() && s.is_root()) {
    auto file = within<checkpoint::SafetensorsFile>(open_limit(s.config), "the file", [path = s.config.weights] {
      return checkpoint::SafetensorsFile::open(path);
    });
    if (!file) return std::move(file).error().with_context("model.weights");
    auto loaded = load_weights(*file, s.config.weights, *s.store);
    if (!loaded) return std::move(loaded).error().with_context("model.weights");
  }
  s.plans = std::make_unique<Plans>(s.config.model, s.config.loss, *s.store, s.config.train.activation_checkpointing);
  auto loader = data::Loader::create(s.train_data, loader_options(s.config));
  if (!loader) return std::move(loader).error();
  s.train_loader = std::move(*loader);
  if (s.validation_data != nullptr) {
    auto second = data::Loader::create(s.validation_data, loader_options(s.config));
    if (!second) return std::move(second).error();
    s.validation_loader = std::move(*second);
  }
  s.scaler = s.config.precision.scale_loss ? optim::GradScaler(s.config.precision.scaler)
                                           : optim::GradScaler({.scale = 1, .growth_interval = 1 << 30});
  return {};
}

Result<void> make_optimizer(Session& s) {
  auto optimizer = optim::Optimizer::create(s.config.optimizer, *s.store);
  if (optimizer) s.optimizer = std::move(*optimizer);
  return s.together(optimizer ? Result<void>() : Result<void>(optimizer.error()));
}

// Rank 0's blocks to all. Blocks on a device go one by one: packing small ones together is the host's way.
Result<void> broadcast_blocks(Session& s, const std::vector<comm::Block>& blocks) {
  if (s.world_size() == 1 || blocks.empty()) return {};
  if (s.device == nullptr) return ddp::broadcast_state(*s.communicator, blocks);
  for (const comm::Block& block : blocks) {
    auto sent = s.communicator->broadcast(block, 0).wait();
    if (!sent) return sent;
  }
  return {};
}

Result<void> make_reducer(Session& s) {
  const std::int64_t batch = std::min(s.config.data.batch_size, s.sampler->samples_per_rank());
  auto planned = s.plans->get(batch, /*training=*/true);
  auto ready = s.together(planned ? Result<void>() : Result<void>(planned.error()));
  if (!ready) return ready;
  std::vector<ddp::ParamId> order;
  for (const engine::ParamId id : (*planned)->plan->ready_order()) order.push_back(id.index);
  auto reducer = ddp::Reducer::create(*s.communicator, parameter_infos(*s.store), order, s.config.ddp.reducer);
  if (!reducer) return std::move(reducer).error();
  s.reducer = std::move(*reducer);
  Result<void> placed;
  for (const ddp::BucketView& view : s.reducer->buckets()) {
    if (s.device == nullptr || !placed) break;
    placed = s.device->check_on_device(view.buffer.data, fmt::format("gradient bucket {}", view.index));
  }
  placed = s.together(std::move(placed));
  if (!placed) return placed;
  for (const ddp::ParamId id : order) s.store->set_gradient(engine::ParamId{id}, s.reducer->gradient_bytes(id));
  return make_optimizer(s);
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

// Rank 0, if there is a checkpoint.dir.
Result<void> make_writer(Session& s) {
  if (s.directory == nullptr) return {};
  const CheckpointConfig& config = s.config.checkpoint;
  auto writer = checkpoint::CheckpointWriter::create(checkpoint::write_into(s.directory, config.keep), config.timeout,
                                                     model_tensors(*s.store), optimizer_tensors(*s.optimizer));
  if (!writer) return std::move(writer).error();
  s.writer = std::move(*writer);
  return {};
}

}  // namespace

Result<void> Session::together(Result<void> mine) {
  // A device that failed is the cause of what else went wrong here (no memory, numbers that are none).
  if (!mine && kernels != nullptr) {
    if (auto good = kernels->status(); !good) mine = std::move(good);
  }
  Agreement agreement = agree(*communicator, std::move(mine));
  if (agreement.result || error_is_said) return std::move(agreement.result);
  error_is_said = true;
  if (agreement.said_elsewhere) {
    const TimePoint give_up = SteadyClock::now() + kTimeForTheSpeaker;
    while (stop->requested() == 0 && SteadyClock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } else {
    say_error(env, agreement.result.error());
  }
  return std::move(agreement.result);
}

Error Session::fail_everywhere(const std::string& message) {
  Error error(Errc::invalid_argument, message);
  auto told = together(is_root() ? Result<void>(error) : Result<void>());
  return told ? error : std::move(told).error();
}

Result<std::unique_ptr<Session>> open_session(const TrainerConfig& config, const WorkerEnv& env, const StopSignal& stop,
                                              bool& error_is_said) {
  auto session = std::make_unique<Session>();
  Session& s = *session;
  s.config = config;
  s.env = env;
  s.stop = &stop;
  comm::CommOptions options;
  auto backend = comm::parse_backend(config.ddp.backend);
  if (!backend) return std::move(backend).error();
  options.backend = *backend;
  options.timeout = config.ddp.timeout;
  auto communicator = comm::make_communicator(env, options);
  if (!communicator) return std::move(communicator).error();
  s.communicator = std::move(*communicator);
  s.communicator->set_timeout(std::max<std::chrono::milliseconds>(kSetupTimeout, 2 * open_limit(config) + kSetupSpare));

  Result<void> done = s.together(open_local(s));
  if (done) done = s.together(same_as_rank_zero(*s.communicator, traits_of(s)));
  if (done) done = make_reducer(s);
  if (done) {
    auto launchers = gather_launchers(*s.communicator);
    if (launchers) s.launchers = std::move(*launchers);
    done = launchers ? Result<void>() : Result<void>(launchers.error());
  }
  if (done) done = s.together(s.is_root() ? restore(s) : Result<void>());
  if (done) done = share_state(s);
  if (done) done = broadcast_blocks(s, state_blocks(*s.store, /*buffers_only=*/false));
  if (done) {
    s.store->refresh_mirrors();
    if (s.resumed) {
      std::vector<comm::Block> blocks;
      for (const optim::StateTensor& t : s.optimizer->state()) {
        blocks.push_back(comm::Block{t.data, static_cast<std::size_t>(t.shape.count()), t.dtype});
      }
      done = broadcast_blocks(s, blocks);
    }
  }
  if (done) done = s.together(make_writer(s));
  error_is_said = s.error_is_said;
  if (!done) return std::move(done).error();
  return session;
}

Result<void> broadcast_buffers(Session& session) {
  return broadcast_blocks(session, state_blocks(*session.store, /*buffers_only=*/true));
}

std::uint32_t parameter_checksum(const Session& session) {
  std::uint32_t crc = 0;
  std::vector<std::byte> host;
  for (const engine::Parameter& p : session.store->parameters()) {
    if (p.buffer) continue;
    host.resize(p.size_bytes());
    session.store->read(p.id, host.data());
    crc = checkpoint::crc32c(host, crc);
  }
  return crc;
}

Result<void> start_save(Session& session) {
  auto begun = session.writer->begin();
  if (!begun) return std::move(begun).error();
  const std::vector<std::byte*>& places = **begun;
  std::size_t at = 0;
  for (const engine::Parameter& p : session.store->parameters()) session.store->read(p.id, places[at++]);
  for (const optim::StateTensor& t : session.optimizer->state()) session.optimizer->read(t, places[at++]);
  auto good = session.kernels->status();
  if (good) session.writer->submit(session.state);
  return good;
}

}  // namespace ddprun::trainer
