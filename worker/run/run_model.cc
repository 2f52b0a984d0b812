#include "worker/run/run_model.h"

#include <fmt/format.h>

#include <vector>

#include "worker/base/crc32c.h"
#include "worker/base/within.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/comm/factory.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/device/backend.h"
#include "worker/run/advice.h"
#include "worker/run/weights.h"

namespace ddprun::trainer {
namespace {

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

// On this process's GPU if it uses one (the communicator decided by the same rule), else on the CPU.
Result<std::unique_ptr<engine::Kernels>> make_kernels(TrainerConfig& config, const WorkerEnv& env, RunModel& model) {
  auto backend = comm::parse_backend(config.ddp.backend);
  if (!backend) return std::move(backend).error();
  auto gpu = comm::find_gpu(*backend);
  if (!gpu) return std::move(gpu).error();
  if (*gpu == nullptr) return engine::make_cpu_kernels(config.precision.dtype);
  if (!config.data.reading.pin_memory) {
    return Error(Errc::invalid_argument,
                 "data.pin_memory: false cannot be had on a GPU: batches go through page-locked buffers of at most "
                 "32 MiB. Leave the key out");
  }
  auto device = (*gpu)->open(static_cast<int>(env.rank.value), static_cast<int>(env.local_rank.value));
  if (!device) return std::move(device).error();
  model.device = *device;
  model.device_versions = (*gpu)->versions();
  config.ddp.reducer.cast = [backend = *gpu](comm::DType from, comm::DType to, const void* in, void* out,
                                             std::size_t count) {
    backend->cast(from, to, in, out, static_cast<std::int64_t>(count));
  };
  return (*gpu)->make_kernels(config.precision.dtype, config.precision.tf32);
}

// Rank 0's blocks to all. Blocks on a device go one by one: packing small ones together is the host's way.
Result<void> broadcast_blocks(const Ranks& ranks, bool on_device, const std::vector<comm::Block>& blocks) {
  if (ranks.world_size() == 1 || blocks.empty()) return {};
  if (!on_device) return ddp::broadcast_state(ranks.communicator(), blocks);
  for (const comm::Block& block : blocks) {
    auto sent = ranks.communicator().broadcast(block, 0).wait();
    if (!sent) return sent;
  }
  return {};
}

}  // namespace

Result<void> open_model(TrainerConfig& config, Ranks& ranks, std::chrono::milliseconds read_limit, RunModel& model) {
  auto kernels = make_kernels(config, ranks.env(), model);
  if (!kernels) return std::move(kernels).error();
  model.kernels = std::move(*kernels);
  ranks.suspect(*model.kernels);
  auto built = engine::build_model(config.model, config.loss, config.data.batch_size);
  if (!built) return std::move(built).error().with_context("model");
  auto store = engine::ParameterStore::create(built->graph, *model.kernels, config.train.frozen);
  if (!store) {
    const bool memory = store.error().code() == Errc::system || store.error().code() == Errc::exhausted;
    if (memory) return Error(store.error().code(), "model: " + store.error().message() + ": " + memory_advice());
    return std::move(store).error().with_context("model.frozen");
  }
  model.store = std::move(*store);
  engine::initialise(config.model, *model.store, config.train.seed);
  if (!config.train.weights.empty() && ranks.is_root()) {
    auto file = within<checkpoint::SafetensorsFile>(
        read_limit, "the file", [path = config.train.weights] { return checkpoint::SafetensorsFile::open(path); });
    if (!file) return std::move(file).error().with_context("model.weights");
    auto loaded = load_weights(*file, config.train.weights, *model.store);
    if (!loaded) return std::move(loaded).error().with_context("model.weights");
  }
  model.plans = std::make_unique<Plans>(config.model, config.loss, *model.store, config.train.activation_checkpointing);
  model.scaler = config.precision.scale_loss ? optim::GradScaler(config.precision.scaler)
                                             : optim::GradScaler({.scale = 1, .growth_interval = 1 << 30});
  return {};
}

Result<void> connect_model(const TrainerConfig& config, Ranks& ranks, std::int64_t batch, RunModel& model) {
  auto planned = model.plans->get(batch, /*training=*/true);
  auto ready = ranks.check_on_all(planned ? Result<void>() : Result<void>(planned.error()));
  if (!ready) return ready;
  std::vector<ddp::ParamId> order;
  for (const engine::ParamId id : (*planned)->plan->ready_order()) order.push_back(id.index);
  auto reducer = ddp::Reducer::create(ranks.communicator(), parameter_infos(*model.store), order, config.ddp.reducer);
  if (!reducer) return std::move(reducer).error();
  model.reducer = std::move(*reducer);
  Result<void> placed;
  for (const ddp::BucketView& view : model.reducer->buckets()) {
    if (model.device == nullptr || !placed) break;
    placed = model.device->check_on_device(view.buffer.data, fmt::format("gradient bucket {}", view.index));
  }
  placed = ranks.check_on_all(std::move(placed));
  if (!placed) return placed;
  for (const ddp::ParamId id : order) {
    model.store->set_gradient(engine::ParamId{id}, model.reducer->gradient_bytes(id));
  }
  auto optimizer = optim::Optimizer::create(config.update.optimizer, *model.store);
  if (!optimizer && optimizer.error().code() == Errc::system) {
    optimizer = Error(Errc::system, optimizer.error().message() + ": " + memory_advice());
  }
  if (optimizer) model.optimizer = std::move(*optimizer);
  return ranks.check_on_all(optimizer ? Result<void>() : Result<void>(optimizer.error()));
}

Result<void> broadcast_model(const Ranks& ranks, const RunModel& model, bool with_optimizer) {
  const bool on_device = model.device != nullptr;
  auto sent = broadcast_blocks(ranks, on_device, state_blocks(*model.store, /*buffers_only=*/false));
  if (!sent) return sent;
  model.store->refresh_mirrors();
  if (!with_optimizer) return {};
  std::vector<comm::Block> blocks;
  for (const optim::StateTensor& t : model.optimizer->state()) {
    blocks.push_back(comm::Block{t.data, static_cast<std::size_t>(t.shape.count()), t.dtype});
  }
  return broadcast_blocks(ranks, on_device, blocks);
}

Result<void> broadcast_buffers(const Ranks& ranks, const RunModel& model) {
  return broadcast_blocks(ranks, model.device != nullptr, state_blocks(*model.store, /*buffers_only=*/true));
}

std::uint32_t parameter_checksum(const engine::ParameterStore& store) {
  std::uint32_t crc = 0;
  std::vector<std::byte> host;
  for (const engine::Parameter& p : store.parameters()) {
    if (p.buffer) continue;
    host.resize(p.size_bytes());
    store.read(p.id, host.data());
    crc = crc32c(host, crc);
  }
  return crc;
}

}  // namespace ddprun::trainer
