#include "worker/config/config.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "common/check.h"
#include "common/config.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 40;
constexpr double kHuge = std::numeric_limits<double>::max();

void read_model(ConfigSection section, TrainerConfig& config) {
  engine::ModelConfig& model = config.model;
  model.name = section.choice("name", "",
                              {"mlp", "linear", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "gpt2"});
  if (!section.has("name")) section.missing("name", "is missing (mlp, linear, resnet18, 34, 50, 101, 152 or gpt2)");
  model.init =
      section.choice("init", "default", {"default", "zeros"}) == "zeros" ? engine::Init::zeros : engine::Init::standard;
  model.stem = section.choice("stem", "imagenet", {"imagenet", "small"}) == "small" ? engine::Stem::small
                                                                                    : engine::Stem::imagenet;
  config.outputs_given = section.has("outputs") || section.has("classes");
  model.outputs = section.integer("outputs", 10, 1, kMany);
  model.outputs = section.integer("classes", model.outputs, 1, kMany);
  if (section.has("outputs") && section.has("classes")) section.error("classes", "means the same as outputs; give one");
  model.hidden = section.integers("hidden", {512, 512});
  for (const std::int64_t width : model.hidden) {
    if (width < 1) section.error("hidden", "needs widths of at least 1");
  }
  const std::string activation = section.choice("activation", "relu", {"relu", "gelu", "silu"});
  model.activation = activation == "gelu"   ? engine::Activation::gelu
                     : activation == "silu" ? engine::Activation::silu
                                            : engine::Activation::relu;
  model.width = section.integer("width", 64, 1, 65536);
  model.gpt2.vocabulary = section.integer("vocabulary", 50257, 2, 65536);
  model.gpt2.context = section.integer("context", 1024, 1, 1 << 20);
  model.gpt2.layers = section.integer("layers", 12, 1, 1000);
  model.gpt2.heads = section.integer("heads", 12, 1, 1000);
  model.gpt2.embedding = section.integer("embedding", 768, 1, 1 << 20);
  model.gpt2.dropout = model.dropout = section.real("dropout", 0, 0, 0.999);
  const std::string norm = section.choice("norm", "none", {"none", "layer", "batch"});
  model.norm = norm == "layer" ? engine::Norm::layer : norm == "batch" ? engine::Norm::batch : engine::Norm::none;
  config.train.weights = section.path("weights", "");
  config.train.frozen = section.texts("frozen", {});
}

// Formats whose samples are two files, and those where one file or folder holds both.
bool has_two_files(const std::string& format) { return format == "npy" || format == "idx"; }

data::DataPaths read_paths(ConfigSection section, const char* key, const std::string& format) {
  data::DataPaths paths;
  if (!section.is_mapping(key)) {
    paths.more = section.paths(key);
    if (!paths.more.empty()) {
      paths.inputs = paths.more.front();
      paths.more.erase(paths.more.begin());
    }
    if (!paths.more.empty() && format != "csv" && format != "tokens" && format != "cifar") {
      section.error(key, "several files are for csv, tokens and cifar");
    }
    if (has_two_files(format) && !paths.inputs.empty()) {
      section.error(key, fmt::format("{} data are two files: {{inputs: FILE, targets: FILE}}", format));
    }
    return paths;
  }
  ConfigSection files = section.section(key);
  paths.inputs = files.path("inputs", "");
  paths.targets = files.path("targets", "");
  if (paths.inputs.empty()) files.missing("inputs", "is missing");
  if (paths.targets.empty()) files.missing("targets", "is missing");
  if (!has_two_files(format) && !format.empty()) {
    files.error("targets", fmt::format("{} data have no file of targets: {}", format,
                                       format == "csv"            ? "the last column is the target"
                                       : format == "cifar"        ? "labels are in the same files"
                                       : format == "image_folder" ? "a picture's folder is its class"
                                       : format == "tokens"       ? "the next token is the target"
                                                                  : "they are made here"));
  }
  return paths;
}

void read_data(ConfigSection section, DataConfig& data) {
  data.format = section.choice("format", "", {"csv", "idx", "npy", "cifar", "image_folder", "tokens", "synthetic"});
  if (!section.has("format")) {
    section.missing("format", "is missing (csv, idx, npy, cifar, image_folder, tokens or synthetic)");
  }
  data.train = read_paths(section, "train", data.format);
  data.validation = read_paths(section, "validation", data.format);
  if (data.format != "synthetic" && data.train.empty()) section.missing("train", "is missing: where are the data?");
  if (data.format == "synthetic" && !data.train.empty()) section.error("train", "synthetic data have no file");
  data.validation_share = section.real("validation_share", 0, 0, 0.9);
  if (data.validation_share > 0 && !data.validation.empty()) {
    section.error("validation_share", "there is data.validation already; give one");
  }
  if (data.validation_share > 0 && data.format == "synthetic") {
    section.error("validation_share", "synthetic data are made as they are needed");
  }
  data.csv.target = section.text("target", "");
  data.csv.columns = section.texts("columns", {});
  data.batch_size = section.integer("batch_size", 64, 1, 1 << 24);
  data.shuffle = section.boolean("shuffle", true);
  data.drop_last = section.boolean("drop_last", false);
  data.drop_short_batch = section.boolean("drop_short_batch", false);
  data.reading.num_workers = static_cast<int>(section.integer("num_workers", 2, 0, 1024));
  data.reading.prefetch_factor = static_cast<int>(section.integer("prefetch_factor", 2, 1, 1024));
  if (section.has("prefetch_factor") && data.reading.num_workers == 0) {
    section.error("prefetch_factor", "needs data.num_workers of at least 1");
  }
  data.reading.persistent_workers = section.boolean("persistent_workers", true);
  data.reading.pin_memory = section.boolean("pin_memory", true);
  ConfigSection normalize = section.section("normalize");
  data.transform.mean = normalize.reals("mean", {});
  data.transform.std = normalize.reals("std", {});
  if (data.transform.mean.size() != data.transform.std.size())
    section.error("normalize", "mean and std need equally many numbers");
  for (const double s : data.transform.std) {
    if (s <= 0) section.error("normalize", "std must be above 0");
  }
  for (const std::string& name : section.texts("augment", {})) {
    if (name == "crop") {
      data.transform.crop = true;
    } else if (name == "flip") {
      data.transform.flip = true;
    } else {
      section.error("augment", fmt::format("'{}' is not known (crop, flip)", name));
    }
  }
  data.transform.image_size = section.integer("image_size", 224, 1, 1 << 14);
  data.sequence_length = section.integer("sequence_length", 1024, 1, 1 << 20);
  data.samples = section.integer("samples", 1024, 1, kMany);
  data.sample_shape = section.integers("sample_shape", {});
  for (const std::int64_t extent : data.sample_shape) {
    if (extent < 1) section.error("sample_shape", "needs extents of at least 1");
  }
  data.reading.timeout = std::chrono::seconds(section.integer("read_timeout_s", 300, 1, 86400));
}

void read_loss(ConfigSection section, engine::LossConfig& loss) {
  const std::string name = section.choice("name", "cross_entropy", {"cross_entropy", "mse"});
  loss.kind = name == "mse" ? engine::LossKind::mse : engine::LossKind::cross_entropy;
  loss.label_smoothing = section.real("label_smoothing", 0, 0, 0.999);
  loss.ignore_index = section.integer("ignore_index", -100, -(std::int64_t{1} << 31), (std::int64_t{1} << 31) - 1);
  if (loss.kind == engine::LossKind::mse && section.has("label_smoothing")) {
    section.error("label_smoothing", "has no meaning for mse");
  }
}

void read_optimizer(ConfigSection section, TrainerConfig& config) {
  optim::OptimizerConfig& optimizer = config.update.optimizer;
  const std::string name = section.choice("name", "sgd", {"sgd", "adam", "adamw"});
  optimizer.kind = name == "adamw"  ? optim::OptimizerKind::adamw
                   : name == "adam" ? optim::OptimizerKind::adam
                                    : optim::OptimizerKind::sgd;
  config.update.schedule.lr = section.real("lr", 0.1, 0, kHuge);
  optimizer.momentum = section.real("momentum", 0, 0, 1);
  optimizer.dampening = section.real("dampening", 0, 0, 1);
  optimizer.weight_decay = section.real("weight_decay", 0, 0, kHuge);
  optimizer.decay_matrices_only = section.boolean("decay_matrices_only", false);
  optimizer.nesterov = section.boolean("nesterov", false);
  if (optimizer.nesterov && (optimizer.momentum <= 0 || optimizer.dampening != 0)) {
    section.error("nesterov", "needs momentum above 0 and no dampening");
  }
  const std::vector<double> betas = section.reals("betas", {0.9, 0.999});
  if (betas.size() != 2 || betas[0] < 0 || betas[0] >= 1 || betas[1] < 0 || betas[1] >= 1) {
    section.error("betas", "needs two numbers from 0 to below 1");
  } else {
    optimizer.beta1 = betas[0];
    optimizer.beta2 = betas[1];
  }
  optimizer.eps = section.real("eps", 1e-8, 0, 1);
  optimizer.average = section.real("ema", 0, 0, 0.999999);
  config.update.clip_grad_norm = section.real("clip_grad_norm", 0, 0, kHuge);
}

// Values that each may be right and together do not do what their names say.
void check_schedule(ConfigSection section, const optim::Schedule& schedule) {
  const bool falls = schedule.kind == optim::ScheduleKind::cosine || schedule.kind == optim::ScheduleKind::linear;
  if (falls && schedule.min_lr > schedule.lr) {
    section.error("min_lr",
                  fmt::format("{} is above optimizer.lr {}: the rate would rise", schedule.min_lr, schedule.lr));
  }
  if (falls && schedule.total_steps > 0 && schedule.total_steps <= schedule.warmup_steps) {
    section.error("total_steps", fmt::format("{} leaves nothing after warmup_steps {}, which are part of them",
                                             schedule.total_steps, schedule.warmup_steps));
  }
  if (schedule.kind != optim::ScheduleKind::multi_step) return;
  if (schedule.milestones.empty()) section.missing("milestones", "is missing: at which steps does the rate change?");
  for (std::size_t i = 0; i < schedule.milestones.size(); ++i) {
    if (schedule.milestones[i] < 1) section.error("milestones", "needs steps of at least 1");
    if (i > 0 && schedule.milestones[i] <= schedule.milestones[i - 1]) {
      section.error("milestones", "must rise from one to the next");
    }
  }
}

void read_schedule(ConfigSection section, optim::Schedule& schedule) {
  const std::string name =
      section.choice("name", "constant", {"constant", "cosine", "step", "multi_step", "linear", "one_cycle"});
  schedule.kind = name == "cosine"       ? optim::ScheduleKind::cosine
                  : name == "step"       ? optim::ScheduleKind::step
                  : name == "multi_step" ? optim::ScheduleKind::multi_step
                  : name == "linear"     ? optim::ScheduleKind::linear
                  : name == "one_cycle"  ? optim::ScheduleKind::one_cycle
                                         : optim::ScheduleKind::constant;
  schedule.warmup_steps = section.integer("warmup_steps", 0, 0, kMany);
  schedule.warmup_factor = section.real("warmup_factor", 0, 0, 1);
  schedule.min_lr = section.real("min_lr", 0, 0, kHuge);
  schedule.step_size = section.integer("step_size", 30, 1, kMany);
  schedule.gamma = section.real("gamma", 0.1, 0, kHuge);
  schedule.milestones = section.integers("milestones", {});
  schedule.total_steps = section.integer("total_steps", 0, 0, kMany);
  schedule.pct_start = section.real("pct_start", 0.3, 0, 1);
  schedule.div_factor = section.real("div_factor", 25, 1, kHuge);
  schedule.final_div_factor = section.real("final_div_factor", 1e4, 1, kHuge);
  if (schedule.kind == optim::ScheduleKind::one_cycle && schedule.warmup_steps > 0) {
    section.error("warmup_steps", "one_cycle has its own rise (pct_start)");
  }
  check_schedule(section, schedule);
}

void read_train(ConfigSection section, TrainConfig& train) {
  train.epochs = section.integer("epochs", 5, 1, kMany);
  train.max_steps = section.integer("max_steps", 0, 0, kMany);
  train.seed = static_cast<std::uint64_t>(section.integer("seed", 0, 0, std::numeric_limits<std::int64_t>::max()));
  train.accumulate = section.integer("accumulate", 1, 1, 1 << 20);
  train.activation_checkpointing = section.boolean("activation_checkpointing", false);
  train.deterministic = section.boolean("deterministic", true);
  train.on_nan = section.choice("on_nan", "stop", {"stop", "skip"}) == "skip" ? OnNan::skip : OnNan::stop;
  train.memory_limit_mb = section.integer("memory_limit_mb", 0, 0, kMany);
  train.step_delay = std::chrono::milliseconds(section.integer("step_delay_ms", 0, 0, 3'600'000));
}

void read_validation(ConfigSection section, const DataConfig& data, ValidationConfig& validation) {
  validation.every_steps = section.integer("every_steps", 0, 0, kMany);
  validation.at_start = section.boolean("at_start", false);
  validation.patience = section.integer("patience", 0, 0, kMany);
  validation.min_delta = section.real("min_delta", 0, 0, kHuge);
  validation.confusion = section.path("confusion", "");
  if (data.has_validation()) return;
  for (const char* key : {"every_steps", "at_start", "patience", "confusion"}) {
    if (section.has(key)) section.error(key, "needs data.validation or data.validation_share");
  }
}

void read_checkpoint(ConfigSection section, const DataConfig& data, CheckpointConfig& checkpoint) {
  checkpoint.dir = section.path("dir", "");
  checkpoint.every_steps = section.integer("every_steps", 100, 0, kMany);
  checkpoint.keep = section.integer("keep", 3, 1, kMany);
  checkpoint.best = section.choice("best", "", {"loss", "perplexity", "accuracy", "top5"});
  if (!checkpoint.best.empty() && !data.has_validation()) {
    section.error("best", "needs data.validation or data.validation_share");
  }
  checkpoint.resume = section.path("resume", "auto");
  for (const char* word : {"true", "false", "yes", "no", "on", "off"}) {
    if (checkpoint.resume == word) {
      section.error("resume",
                    fmt::format("'{}' is neither auto, none nor a path (a folder of that name: ./{})", word, word));
    }
  }
  checkpoint.timeout = std::chrono::seconds(section.integer("timeout_s", 600, 1, 86400));
}

void read_ddp(ConfigSection section, DdpConfig& ddp) {
  ddp.reducer.bucket_cap_mb = section.real("bucket_cap_mb", 25, 0.001, 1e6);
  ddp.reducer.first_bucket_mb = section.real("first_bucket_mb", 1, 0.001, 1e6);
  ddp.reducer.overlap = section.boolean("overlap", true);
  ddp.reducer.compression = section.text("compression", "none");
  if (auto hook = ddp::make_hook(ddp.reducer.compression); !hook) {
    section.error("compression", hook.error().message());
  }
  ddp.reducer.force_compression = section.boolean("force_compression", false);
  ddp.sync_buffers =
      section.choice("sync_buffers", "eval", {"eval", "step"}) == "step" ? SyncBuffers::step : SyncBuffers::eval;
  ddp.backend = section.choice("backend", "auto", {"auto", "nccl", "cpu"});
  const auto seconds = [&section](const char* key) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(section.real(key, 30, 0.1, 1e6) * 1000));
  };
  ddp.timeout = seconds("timeout_s");
  ddp.connect_timeout = seconds("connect_timeout_s");
}

void read_precision(ConfigSection section, PrecisionConfig& precision) {
  const std::string dtype = section.choice("dtype", "fp32", {"fp32", "bf16", "fp16"});
  precision.dtype = dtype == "bf16" ? engine::DType::bf16 : dtype == "fp16" ? engine::DType::f16 : engine::DType::f32;
  precision.tf32 = section.boolean("tf32", false);
  const std::string scaling = section.choice("loss_scaling", "auto", {"auto", "true", "false"});
  precision.scale_loss = scaling == "true" || (scaling == "auto" && dtype == "fp16");
  precision.scaler.scale = static_cast<float>(section.real("init_scale", 65536, 1e-30, 1e38));
  precision.scaler.growth_interval = static_cast<std::int32_t>(section.integer("growth_interval", 2000, 1, 1 << 30));
}

// Model, data and loss together: what cannot fit whatever the files hold.
void check_model(ConfigSection root, const TrainerConfig& config) {
  const engine::ModelConfig& model = config.model;
  const DataConfig& data = config.data;
  ConfigSection model_section = root.section("model");
  ConfigSection data_section = root.section("data");
  const bool resnet = model.name.rfind("resnet", 0) == 0;
  const bool gpt = model.name == "gpt2";
  if (gpt && model.gpt2.embedding % model.gpt2.heads != 0) {
    model_section.error("embedding",
                        fmt::format("{} is no multiple of model.heads {}", model.gpt2.embedding, model.gpt2.heads));
  }
  if (gpt && data.sequence_length > model.gpt2.context) {
    data_section.error("sequence_length",
                       fmt::format("{} is above model.context {}", data.sequence_length, model.gpt2.context));
  }
  if (gpt != (data.format == "tokens") && data.format != "synthetic") {
    data_section.error("format", fmt::format("model {} does not fit {} data: one has tokens, the other numbers",
                                             model.name, data.format));
  }
  if (resnet && data.format == "csv") {
    data_section.error("format", fmt::format("model {} needs square images, csv data have none", model.name));
  }
  if (data.format == "csv" && (data.transform.crop || data.transform.flip))
    data_section.error("augment", "csv data are no images");
  if (resnet && data.transform.image_size < 8 && (data.format == "image_folder" || data.format == "synthetic")) {
    data_section.error("image_size",
                       fmt::format("{} is below 8, the least for {}", data.transform.image_size, model.name));
  }
  if ((resnet || gpt) && config.loss.kind == engine::LossKind::mse) {
    root.section("loss", "name").error("name", fmt::format("mse is not for model {}, which has classes", model.name));
  }
  if (data.format == "image_folder" && config.loss.kind == engine::LossKind::mse) {
    root.section("loss", "name").error("name", "mse needs numbers as targets, image_folder data have classes");
  }
}

// Names do not depend on sizes, so a model as small as can be has them.
void check_frozen(ConfigSection section, const TrainerConfig& config) {
  if (config.train.frozen.empty()) return;
  engine::ModelConfig model = config.model;
  model.inputs = std::max<std::int64_t>(model.inputs, 1);
  if (model.name == "gpt2") model.gpt2.sequence_length = 1;
  auto built = engine::build_model(model, {}, 1);
  if (!built) return;  // said with better words elsewhere
  for (const std::string& pattern : config.train.frozen) {
    const auto& all = built->graph.parameters();
    const bool any = std::any_of(all.begin(), all.end(), [&pattern](const engine::ParameterSpec& p) {
      return !p.buffer && ::fnmatch(pattern.c_str(), p.name.c_str(), 0) == 0;
    });
    if (any) continue;
    const bool prefix = std::any_of(all.begin(), all.end(), [&pattern](const engine::ParameterSpec& p) {
      return !p.buffer && p.name.starts_with(pattern + ".");
    });
    section.error("frozen", prefix ? fmt::format("no parameter is named '{0}'; did you mean '{0}.*'?", pattern)
                                   : fmt::format("no parameter matches '{}' (the first is {})", pattern,
                                                 all.empty() ? std::string("none") : all.front().name));
  }
}

void no_effect(ConfigSection section, std::initializer_list<const char*> keys, const std::string& why) {
  for (const char* key : keys) section.no_effect(key, why);
}

// A key that is there and does nothing is a misunderstanding: say so.
void find_idle_keys(ConfigSection root, const TrainerConfig& config) {
  const std::string& name = config.model.name;
  const std::string& format = config.data.format;
  const bool resnet = name.rfind("resnet", 0) == 0;
  const auto of_model = [&name](const char* others) { return "it is for " + std::string(others) + ", not " + name; };
  ConfigSection model = root.section("model");
  if (name != "mlp") no_effect(model, {"hidden", "activation", "norm"}, of_model("mlp"));
  if (!resnet) no_effect(model, {"stem", "width"}, of_model("ResNets"));
  if (name != "gpt2") {
    no_effect(model, {"vocabulary", "context", "layers", "heads", "embedding"}, of_model("gpt2"));
    if (name != "mlp") no_effect(model, {"dropout"}, of_model("gpt2 and mlp"));
  } else {
    no_effect(model, {"outputs", "classes"}, "gpt2 has model.vocabulary");
  }
  ConfigSection data = root.section("data");
  const std::string with_format = "data.format is " + format;
  if (format != "csv") no_effect(data, {"target", "columns"}, with_format);
  if (format != "synthetic") no_effect(data, {"samples", "sample_shape"}, with_format);
  if (format != "image_folder" && !(format == "synthetic" && resnet)) no_effect(data, {"image_size"}, with_format);
  if (format != "tokens" && !(format == "synthetic" && name == "gpt2"))
    no_effect(data, {"sequence_length"}, with_format);
  if (format == "tokens" || format == "synthetic") no_effect(data, {"normalize", "augment"}, with_format);
  ConfigSection optimizer = root.section("optimizer");
  if (config.update.optimizer.kind == optim::OptimizerKind::sgd) {
    no_effect(optimizer, {"betas", "eps"}, "they are for adam and adamw, not sgd");
  } else {
    no_effect(optimizer, {"momentum", "dampening", "nesterov"}, "they are for sgd, not adam or adamw");
  }
  ConfigSection schedule = root.section("schedule", "name");
  const optim::ScheduleKind kind = config.update.schedule.kind;
  const bool falls = kind == optim::ScheduleKind::cosine || kind == optim::ScheduleKind::linear;
  const bool steps = kind == optim::ScheduleKind::step || kind == optim::ScheduleKind::multi_step;
  const bool one_cycle = kind == optim::ScheduleKind::one_cycle;
  if (!falls) no_effect(schedule, {"min_lr"}, "it is for cosine and linear");
  if (!falls && !one_cycle) no_effect(schedule, {"total_steps"}, "it is for cosine, linear and one_cycle");
  if (!one_cycle) no_effect(schedule, {"pct_start", "div_factor", "final_div_factor"}, "they are for one_cycle");
  if (kind != optim::ScheduleKind::step) no_effect(schedule, {"step_size"}, "it is for step");
  if (kind != optim::ScheduleKind::multi_step) no_effect(schedule, {"milestones"}, "they are for multi_step");
  if (!steps) no_effect(schedule, {"gamma"}, "it is for step and multi_step");
  if (config.update.schedule.warmup_steps == 0) no_effect(schedule, {"warmup_factor"}, "warmup_steps is 0");
  if (!config.precision.scale_loss) {
    no_effect(root.section("precision"), {"init_scale", "growth_interval"}, "the loss is not scaled (loss_scaling)");
  }
  if (config.validation.patience == 0) no_effect(root.section("validation"), {"min_delta"}, "validation.patience is 0");
  if (config.ddp.reducer.compression == "none") {
    no_effect(root.section("ddp"), {"force_compression"}, "compression is none");
  }
  if (config.checkpoint.dir.empty()) {
    no_effect(root.section("checkpoint"), {"every_steps", "keep", "best", "timeout_s"}, "checkpoint.dir is not set");
  }
}

TrainerConfig read_all(ConfigSection root) {
  TrainerConfig config;
  read_model(root.section("model"), config);
  read_data(root.section("data"), config.data);
  read_loss(root.section("loss", "name"), config.loss);
  read_optimizer(root.section("optimizer"), config);
  read_schedule(root.section("schedule", "name"), config.update.schedule);
  if (!config.model.name.empty() && !config.data.format.empty()) check_model(root, config);
  check_frozen(root.section("model"), config);
  read_train(root.section("train"), config.train);
  read_ddp(root.section("ddp"), config.ddp);
  read_precision(root.section("precision"), config.precision);

  read_validation(root.section("validation"), config.data, config.validation);
  read_checkpoint(root.section("checkpoint"), config.data, config.checkpoint);
  ConfigSection log = root.section("log");
  config.log.file = log.path("file", "train.log");
  config.log.file_given = log.has("file");
  if (log.is_empty("file")) config.log.file.clear();
  config.log.every_steps = log.integer("every_steps", 10, 1, kMany);
  config.log.memory_check = log.boolean("memory_check", true);

  ConfigSection output = root.section("output");
  config.output.metrics = output.path("metrics", "");
  config.output.params = output.path("params", "");
  config.output.indices = output.path("indices", "");
  config.output.tensorboard = output.path("tensorboard", "");
  if (!config.output.params.empty() && config.model.name != "linear" && !config.model.name.empty()) {
    output.error("params", "is for model.name linear; other models: see checkpoint.dir");
  }
  return config;
}

Result<TrainerConfig> finish(Result<Config> file, const std::vector<std::string>& overrides) {
  if (!file) return std::move(file).error();
  for (const std::string& assignment : overrides) {
    auto done = file->override_value(assignment);
    if (!done) return std::move(done).error();
  }
  TrainerConfig config = read_all(file->root());
  auto good = file->finish();
  if (!good) return std::move(good).error();
  find_idle_keys(file->root(), config);
  config.warnings = file->warnings();
  config.effective = file->effective();
  return config;
}

}  // namespace

std::map<std::string, std::string> known_config_keys() {
  // Both ways to name data have keys.
  auto file = Config::parse("data: {train: {inputs: a, targets: b}, validation: {inputs: a, targets: b}}", "");
  CHECK(file, "a constant text");
  (void)read_all(file->root());
  auto keys = file->known_keys();
  keys.emplace("data.train", "");
  keys.emplace("data.validation", "");
  return keys;
}

Result<TrainerConfig> load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return finish(Config::load(path), overrides);
}

Result<TrainerConfig> parse_config(const std::string& text, const std::string& name_for_errors,
                                   const std::vector<std::string>& overrides) {
  return finish(Config::parse(text, name_for_errors), overrides);
}

}  // namespace ddprun::trainer
