#include "worker/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/exit_code.h"
#include "common/log.h"
#include "worker/agree.h"
#include "worker/checkpoint/crc32c.h"
#include "worker/comm/factory.h"
#include "worker/cuda/backend.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/weights.h"

namespace ddprun::trainer {
namespace {

// Until the first step: one rank may read files while the others wait for it.
constexpr std::chrono::milliseconds kSetupTimeout{600'000};

comm::DType comm_type(engine::DType dtype) {
  // The two enumerations have the same members in the same order.
  static_assert(static_cast<int>(engine::DType::i64) == static_cast<int>(comm::DType::i64) &&
                static_cast<int>(engine::DType::bf16) == static_cast<int>(comm::DType::bf16));
  return static_cast<comm::DType>(dtype);
}

Result<std::unique_ptr<data::Dataset>> open_data(const TrainerConfig& config, bool training) {
  data::DatasetOptions options;
  options.format = config.data.format;
  options.paths = training ? config.data.train : config.data.validation;
  options.target = config.loss.kind == engine::LossKind::mse ? data::TargetKind::values : data::TargetKind::classes;
  if (config.model.name == "gpt2") {
    options.classes = config.model.vocabulary;
  } else if (config.outputs_given) {
    options.classes = config.model.outputs;
  }
  options.training = training;
  options.mean = config.data.mean;
  options.std = config.data.std;
  options.crop = config.data.crop;
  options.flip = config.data.flip;
  options.image_size = config.data.image_size;
  options.sequence_length = config.data.sequence_length;
  options.synthetic_samples = config.data.samples;
  options.synthetic_shape = config.data.sample_shape;
  if (options.synthetic_shape.empty() && config.model.name.rfind("resnet", 0) == 0) {
    options.synthetic_shape = {config.data.image_size, config.data.image_size, 3};
  } else if (options.synthetic_shape.empty() && config.model.name != "gpt2") {
    options.synthetic_shape = {784};
  }
  return data::open_dataset(options);
}

// What the model takes from the data: features, channels, image size, classes.
Result<void> fit_model(TrainerConfig& config, const data::SampleSpec& spec) {
  engine::ModelConfig& model = config.model;
  const bool image_model = model.name.rfind("resnet", 0) == 0;
  const bool token_model = model.name == "gpt2";
  if (token_model != (spec.input_type == data::ElementType::i32)) {
    return Error(Errc::invalid_argument, fmt::format("model {} does not fit data.format {}: one has tokens, the other "
                                                     "numbers",
                                                     model.name, config.data.format));
  }
  if (token_model) {
    model.sequence_length = config.data.sequence_length;
    return {};
  }
  if (image_model) {
    if (spec.input_shape.size() != 3 || spec.input_shape[0] != spec.input_shape[1]) {
      return Error(Errc::invalid_argument,
                   fmt::format("model {} needs square images (height x width x channels)", model.name));
    }
    model.image_size = spec.input_shape[0];
    model.channels = spec.input_shape[2];
  } else {
    model.inputs = spec.input_count();
  }
  if (config.loss.kind == engine::LossKind::mse) {
    if (!config.outputs_given) model.outputs = spec.target_count();
    if (model.outputs != spec.target_count()) {
      return Error(Errc::invalid_argument, fmt::format("model.outputs is {}, but the data have {} target(s) a sample",
                                                       model.outputs, spec.target_count()));
    }
  } else if (spec.target_count() != 1) {
    return Error(Errc::invalid_argument,
                 fmt::format("cross_entropy needs one class a sample, the data have {}", spec.target_count()));
  } else if (!config.outputs_given) {
    model.outputs = spec.classes;
  }
  return {};
}

std::vector<ddp::ParameterInfo> parameter_infos(const engine::ParameterStore& store) {
  std::vector<ddp::ParameterInfo> infos;
  for (const engine::Parameter& p : store.parameters()) {
    const auto extents = p.shape.extents();
    infos.push_back(ddp::ParameterInfo{p.name, {extents.begin(), extents.end()}, comm_type(p.dtype), p.count()});
  }
  return infos;
}

std::vector<comm::Block> state_blocks(const engine::ParameterStore& store, bool buffers_only) {
  std::vector<comm::Block> blocks;
  for (const engine::Parameter& p : store.parameters()) {
    if (!buffers_only || p.buffer) blocks.push_back(comm::Block{p.data, p.count(), comm_type(p.dtype)});
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
  if (s.config.ddp.reducer.compression != "none") {
    return Error(Errc::invalid_argument,
                 fmt::format("ddp.compression {} works on CPU collectives only; on GPUs use compression: none and "
                             "precision.dtype: bf16",
                             s.config.ddp.reducer.compression));
  }
  auto device = (*gpu)->open(static_cast<int>(s.env.rank.value), static_cast<int>(s.env.local_rank.value));
  if (!device) return std::move(device).error();
  s.device = *device;
  return (*gpu)->make_kernels(s.config.precision.dtype, s.config.precision.tf32);
}

// Phase 1 on each rank: no collective inside.
Result<void> open_local(Session& s) {
  auto train = open_data(s.config, true);
  if (!train) return std::move(train).error().with_context("data.train");
  s.train_data = std::move(*train);
  if (!s.config.data.validation.empty()) {
    auto validation = open_data(s.config, false);
    if (!validation) return std::move(validation).error().with_context("data.validation");
    s.validation_data = std::move(*validation);
  }
  auto fits = fit_model(s.config, s.train_data->spec());
  if (!fits) return fits;
  if (s.validation_data != nullptr) {
    const data::SampleSpec& a = s.train_data->spec();
    const data::SampleSpec& b = s.validation_data->spec();
    if (a.input_shape != b.input_shape || a.target_shape != b.target_shape ||
        (b.classes > a.classes && !s.config.outputs_given)) {
      return Error(Errc::invalid_argument, "data.validation: its samples are not like those of data.train");
    }
  }
  data::SamplerOptions sampling;
  sampling.samples = s.train_data->size();
  sampling.world_size = s.world_size();
  sampling.rank = s.rank();
  sampling.shuffle = s.config.data.shuffle;
  sampling.drop_last = s.config.data.drop_last;
  sampling.seed = s.config.train.seed;
  s.sampler = std::make_unique<data::DistributedSampler>(sampling);
  if (s.sampler->samples_per_rank() == 0) {
    return Error(Errc::invalid_argument, fmt::format("{} training samples leave nothing for each of {} ranks with "
                                                     "data.drop_last; use fewer ranks",
                                                     sampling.samples, sampling.world_size));
  }
  auto kernels = make_kernels(s);
  if (!kernels) return std::move(kernels).error();
  s.kernels = std::move(*kernels);
  auto model = engine::build_model(s.config.model, s.config.loss, s.config.data.batch_size);
  if (!model) return std::move(model).error().with_context("model");
  auto store = engine::ParameterStore::create(model->graph, *s.kernels, s.config.train.frozen);
  if (!store) {
    const bool memory = store.error().code() == Errc::system;
    return std::move(store).error().with_context(memory ? "model" : "model.frozen");
  }
  s.store = std::move(*store);
  engine::initialise(s.config.model, *s.store, s.config.train.seed);
  if (!s.config.weights.empty() && s.is_root()) {
    auto loaded = load_weights(s.config.weights, *s.store);
    if (!loaded) return std::move(loaded).error().with_context("model.weights");
  }
  s.plans = std::make_unique<Plans>(s.config.model, s.config.loss, *s.store, s.config.train.activation_checkpointing);
  s.train_loader = std::make_unique<data::Loader>(*s.train_data, loader_options(s.config));
  if (s.validation_data != nullptr) {
    s.validation_loader = std::make_unique<data::Loader>(*s.validation_data, loader_options(s.config));
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
  for (const ddp::ParamId id : order) s.store->set_gradient(engine::ParamId{id}, s.reducer->gradient_bytes(id));
  return make_optimizer(s);
}

Result<std::optional<checkpoint::LoadedCheckpoint>> choose_checkpoint(Session& s) {
  const CheckpointConfig& config = s.config.checkpoint;
  std::optional<checkpoint::LoadedCheckpoint> chosen;
  if (!config.dir.empty()) {
    auto directory = checkpoint::CheckpointDirectory::open(config.dir);
    if (!directory) return std::move(directory).error().with_context("checkpoint.dir");
    s.directory = std::make_unique<checkpoint::CheckpointDirectory>(std::move(*directory));
  }
  const bool automatic = config.resume == "auto";
  if (automatic && s.directory != nullptr) {
    auto newest = checkpoint::load_newest(*s.directory);
    if (!newest) return std::move(newest).error();
    s.notes = newest->damage;
    chosen = std::move(newest->checkpoint);
  }
  if (!automatic && s.directory != nullptr) {
    auto steps = s.directory->steps();
    if (!steps) return std::move(steps).error();
    if (!steps->empty()) {
      return Error(Errc::invalid_argument,
                   fmt::format("checkpoint.dir {} already has checkpoints up to step {}, and checkpoint.resume is {}: "
                               "use resume: auto to go on from them, or another folder",
                               config.dir, steps->back(), config.resume));
    }
  }
  if (!automatic && config.resume != "none") {
    std::string folder = config.resume;
    std::error_code ignored;
    if (std::filesystem::exists(folder + "/latest", ignored)) folder += "/latest";
    auto loaded = checkpoint::load_checkpoint(folder);
    if (!loaded) return std::move(loaded).error().with_context("checkpoint.resume");
    chosen = std::move(*loaded);
  }
  if (chosen) s.notes.push_back(fmt::format("resumed from {} at step {}", chosen->folder, chosen->state.step));
  return chosen;
}

// Rank 0: finds the checkpoint, if there is one, and puts it into model, optimizer and state.
Result<void> restore(Session& s) {
  s.state.samples = s.train_data->size();
  s.state.seed = s.config.train.seed;
  s.state.world_size = s.world_size();
  s.state.scale = static_cast<float>(s.scaler.scale());
  auto chosen = choose_checkpoint(s);
  if (!chosen) return std::move(chosen).error();
  if (!*chosen) return {};
  const checkpoint::LoadedCheckpoint& loaded = **chosen;
  if (loaded.state.samples != s.train_data->size()) {
    return Error(Errc::invalid_argument,
                 fmt::format("{} was made with {} training samples, data.train has {}: its place in the epoch means "
                             "nothing here",
                             loaded.folder, loaded.state.samples, s.train_data->size()));
  }
  if (loaded.state.seed != s.config.train.seed) {
    return Error(Errc::invalid_argument, fmt::format("{} was made with train.seed {}, the configuration says {}",
                                                     loaded.folder, loaded.state.seed, s.config.train.seed));
  }
  auto done = restore_model(loaded.model, *s.store);
  if (!done) return std::move(done).error().with_context(loaded.folder + "/" + checkpoint::kModelFile);
  done = restore_optimizer(loaded.optimizer, *s.optimizer);
  if (!done) return std::move(done).error().with_context(loaded.folder + "/" + checkpoint::kOptimizerFile);
  s.state = loaded.state;
  s.resumed = true;
  return {};
}

// Rank 0's state.json to all.
Result<void> share_state(Session& s) {
  std::vector<std::int32_t> words;
  std::int64_t head[2] = {0, s.resumed ? 1 : 0};
  std::string text;
  if (s.is_root()) {
    text = checkpoint::to_json(s.state);
    head[0] = static_cast<std::int64_t>(text.size());
  }
  auto sent = s.communicator->broadcast(comm::Block{head, 2, comm::DType::i64}, 0).wait();
  if (!sent) return sent;
  words.resize((static_cast<std::size_t>(head[0]) + 3) / 4);
  if (s.is_root()) std::memcpy(words.data(), text.data(), text.size());
  sent = s.communicator->broadcast(comm::Block{words.data(), words.size(), comm::DType::i32}, 0).wait();
  if (!sent) return sent;
  auto state = checkpoint::state_from_json(
      std::string(reinterpret_cast<const char*>(words.data()), static_cast<std::size_t>(head[0])));
  if (!state) return std::move(state).error().with_context("state from rank 0");
  s.state = std::move(*state);
  s.resumed = head[1] != 0;
  if (s.resumed) {
    s.optimizer->set_steps(s.state.optimizer_steps);
    optim::GradScaler::State scaler = s.scaler.state();
    scaler.scale = s.state.scale;
    scaler.growth_tracker = s.state.growth_tracker;
    if (s.config.precision.scale_loss) s.scaler = optim::GradScaler(scaler);
  }
  return {};
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
    // Ends with an error as soon as the rank that failed is gone.
    communicator->set_timeout(std::chrono::seconds(5));
    [[maybe_unused]] const auto gone = communicator->barrier();
  } else {
    say_error(env, agreement.result.error());
  }
  return std::move(agreement.result);
}

int exit_code_of(const Error& error) {
  switch (error.code()) {
    case Errc::malformed:
    case Errc::invalid_argument:
    case Errc::not_found:
      return exit_code::kPermanent;
    default:
      return exit_code::kFailure;
  }
}

void say_error(const WorkerEnv& env, const Error& error) {
  std::fprintf(stderr, "trainer: rank %lld: %s\n", static_cast<long long>(env.rank.value), error.message().c_str());
  write_error_file(env.error_file, error.message(), exit_code_of(error));
}

void write_error_file(const std::string& path, const std::string& message, int exit_code) {
  if (path.empty()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json json;
  json["message"]["message"] = message;
  json["message"]["errorCode"] = exit_code;
  json["message"]["extraInfo"]["timestamp"] =
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  std::ofstream file(path);
  file << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  if (!file.good()) log_warning("cannot write the error file {}", path);
}

Result<std::unique_ptr<Session>> open_session(const TrainerConfig& config, const WorkerEnv& env, bool& error_is_said) {
  auto session = std::make_unique<Session>();
  Session& s = *session;
  s.config = config;
  s.env = env;
  comm::CommOptions options;
  auto backend = comm::parse_backend(config.ddp.backend);
  if (!backend) return std::move(backend).error();
  options.backend = *backend;
  options.timeout = config.ddp.timeout;
  auto communicator = comm::make_communicator(env, options);
  if (!communicator) return std::move(communicator).error();
  s.communicator = std::move(*communicator);
  s.communicator->set_timeout(kSetupTimeout);

  Result<void> done = s.together(open_local(s));
  if (done) done = make_reducer(s);
  if (done) done = s.together(s.is_root() ? restore(s) : Result<void>());
  if (done) done = share_state(s);
  if (done) done = broadcast_blocks(s, state_blocks(*s.store, /*buffers_only=*/false));
  if (done) {
    s.store->refresh_mirrors();
    if (s.resumed) {
      std::vector<comm::Block> blocks;
      for (const optim::StateTensor& t : s.optimizer->state()) {
        blocks.push_back(comm::Block{t.data, static_cast<std::size_t>(t.shape.count()), comm_type(t.dtype)});
      }
      done = broadcast_blocks(s, blocks);
    }
  }
  if (done) done = ddp::check_equal(*s.communicator, "training samples", s.train_data->size());
  error_is_said = s.error_is_said;
  if (!done) return std::move(done).error();
  if (s.directory != nullptr) {
    s.writer = std::make_unique<checkpoint::CheckpointWriter>(*s.directory, s.config.checkpoint.keep,
                                                              model_tensors(*s.store), optimizer_tensors(*s.optimizer));
  }
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
  const std::vector<std::byte*>& places = session.writer->begin();
  std::size_t at = 0;
  for (const engine::Parameter& p : session.store->parameters()) session.store->read(p.id, places[at++]);
  for (const optim::StateTensor& t : session.optimizer->state()) session.optimizer->read(t, places[at++]);
  auto good = session.kernels->status();
  if (good) session.writer->submit(session.state);
  return good;
}

}  // namespace ddprun::trainer
