#include "worker/run/preview.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "worker/data/distributed_sampler.h"
#include "worker/engine/plan.h"
#include "worker/kernels/kernels.h"
#include "worker/models/models.h"
#include "worker/run/advice.h"
#include "worker/run/open_data.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t kRead = 2000;  // samples that are looked into: of pictures each one is decoded

std::string megabytes(std::size_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

// Parameters and the memory of one rank on the CPU.
std::vector<std::string> describe_model(const TrainerConfig& config, std::int64_t batch) {
  auto kernels = engine::make_cpu_kernels(config.precision.dtype);
  auto built = engine::build_model(config.model, config.loss, batch);
  if (!kernels || !built) return {"model: " + (!built ? built.error() : kernels.error()).message()};
  auto store = engine::ParameterStore::create(built->graph, **kernels, config.train.frozen);
  if (!store) return {"model: " + store.error().message() + ": " + memory_advice()};
  const std::int64_t trained = (*store)->trainable_count();
  std::vector<std::string> lines = {
      fmt::format("model: {}, {} parameters that are trained", config.model.name, trained)};
  engine::PlanOptions options;
  options.activation_checkpointing = config.train.activation_checkpointing;
  auto plan = engine::Plan::create(built->graph, **store, options);
  if (!plan) {
    lines.push_back("memory: " + plan.error().message() + ": " + memory_advice());
    return lines;
  }
  const engine::MemoryReport memory = (*plan)->memory();
  const optim::OptimizerConfig& update = config.update.optimizer;
  const int states = (update.kind != optim::OptimizerKind::sgd ? 2
                      : update.momentum != 0                   ? 1
                                                               : 0) +
                     (update.average > 0 ? 1 : 0);
  const std::size_t gradients = static_cast<std::size_t>(trained) * 4;
  const std::size_t optimizer = gradients * static_cast<std::size_t>(states);
  lines.push_back(
      fmt::format("memory of a rank: {} = parameters {} + gradients {} + optimizer {} + activations {} (and "
                  "what the data take)",
                  megabytes((*store)->parameter_bytes() + gradients + optimizer + memory.activation_bytes),
                  megabytes((*store)->parameter_bytes()), megabytes(gradients), megabytes(optimizer),
                  megabytes(memory.activation_bytes)));
  return lines;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string class_text(const data::SampleSpec& spec, std::int32_t label) {
  const auto index = static_cast<std::size_t>(label);
  return label >= 0 && index < spec.class_names.size() ? spec.class_names[index] : std::to_string(label);
}

}  // namespace

std::vector<std::string> preview(TrainerConfig config, int world_size) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : config.effective) lines.push_back("  " + key + ": " + value);
  auto data = open_data(config);
  if (!data) {
    lines.push_back("the data cannot be opened here, so parameters and steps are not known: " + data.error().message());
    return lines;
  }
  data::SamplerOptions sampling;
  sampling.samples = data->train->size();
  sampling.world_size = world_size;
  sampling.drop_last = config.data.drop_last;
  sampling.whole_batches = config.data.drop_short_batch ? config.data.batch_size : 0;
  const std::int64_t share = data::DistributedSampler(sampling).samples_per_rank();
  const data::SampleSpec& spec = data->train->spec();
  std::string text = fmt::format("data: {} training samples of {}", data->train->size(), shape_text(spec.input_shape));
  if (spec.classes > 0 && config.model.name != "gpt2") text += fmt::format(", {} classes", spec.classes);
  if (data->validation != nullptr) text += fmt::format("; {} validation samples", data->validation->size());
  lines.push_back(text);
  const std::int64_t batch = std::max<std::int64_t>(1, std::min(config.data.batch_size, share));
  for (std::string& line : describe_model(config, batch)) lines.push_back(std::move(line));
  const std::int64_t per_step = config.data.batch_size * config.train.accumulate;
  const std::int64_t per_epoch = (share + per_step - 1) / per_step;
  std::int64_t steps = per_epoch * config.train.epochs;
  if (config.train.max_steps > 0) steps = std::min(steps, config.train.max_steps);
  lines.push_back(fmt::format("steps with {} rank(s): {} an epoch of {} samples each, {} in all; seed {}", world_size,
                              per_epoch, per_step * world_size, steps, config.train.seed));
  const RunFacts facts{.steps = steps,
                       .samples_per_rank = share,
                       .world_size = world_size,
                       .crosses_hosts = true,
                       .on_gpu = config.ddp.backend == "nccl"};
  for (const std::string& warning : advice(config, facts)) config.warnings.push_back(warning);
  for (const std::string& warning : config.warnings) lines.push_back("warning: " + warning);
  return lines;
}

std::vector<std::string> describe_data(const data::Dataset& dataset, std::uint64_t seed) {
  const data::SampleSpec& spec = dataset.spec();
  std::vector<std::string> lines;
  const bool tokens = spec.input_type == data::ElementType::i32;
  lines.push_back(fmt::format("{} samples; inputs {} {}; targets {}", dataset.size(), shape_text(spec.input_shape),
                              tokens ? "tokens" : "numbers",
                              spec.classes == 0 ? "numbers " + shape_text(spec.target_shape)
                              : tokens          ? std::string("the next tokens")
                                                : fmt::format("{} classes", spec.classes)));
  std::vector<std::byte> input(spec.input_bytes()), target(spec.target_bytes());
  std::map<std::int32_t, std::int64_t> counts;
  double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0;
  std::vector<std::string> first;
  const std::int64_t looked = std::min(dataset.size(), kRead);
  for (std::int64_t i = 0; i < looked; ++i) {
    const std::int64_t index = i * dataset.size() / looked;
    auto read = dataset.read(data::SampleKey{seed, 0, index}, input.data(), target.data());
    if (!read) {
      lines.push_back(fmt::format("{}: {}", dataset.name_of(index), read.error().message()));
      continue;
    }
    const auto count = static_cast<std::size_t>(spec.input_count());
    std::string text = dataset.name_of(index) + ":";
    for (std::size_t v = 0; v < count; ++v) {
      float number = 0;
      std::int32_t id = 0;
      std::memcpy(&number, input.data() + 4 * v, 4);
      std::memcpy(&id, input.data() + 4 * v, 4);
      const double value = tokens ? static_cast<double>(id) : static_cast<double>(number);
      low = std::min(low, value);
      high = std::max(high, value);
      sum += value / static_cast<double>(count);
      if (v < 8) text += fmt::format(" {:.4g}", value);
      if (v == 8) text += " ...";
    }
    std::int32_t label = 0;
    float value = 0;
    std::memcpy(&label, target.data(), 4);
    std::memcpy(&value, target.data(), 4);
    if (!tokens && spec.classes > 0) {
      ++counts[label];
      text += " -> " + class_text(spec, label);
    } else if (!tokens) {
      text += fmt::format(" -> {:.6g}", value);
    }
    if (first.size() < 3) first.push_back(std::move(text));
  }
  lines.push_back(fmt::format("inputs from {:.4g} to {:.4g}, mean {:.4g}{}", low, high,
                              sum / static_cast<double>(looked),
                              looked < dataset.size() ? fmt::format(" (of {} samples)", looked) : ""));
  std::int64_t most = 1;
  for (const auto& [label, count] : counts) most = std::max(most, count);
  std::size_t shown = 0;
  for (const auto& [label, count] : counts) {
    if (++shown > 40) {
      lines.push_back(fmt::format("... {} more classes", counts.size() - 40));
      break;
    }
    lines.push_back(fmt::format("{:>16} {:>7} {}", class_text(spec, label), count,
                                std::string(static_cast<std::size_t>(40 * count / most), '#')));
  }
  lines.insert(lines.end(), first.begin(), first.end());
  for (const std::string& line : dataset.left_out()) lines.push_back("left out: " + line);
  return lines;
}

}  // namespace ddprun::trainer
