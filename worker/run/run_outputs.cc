#include "worker/run/run_outputs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/log.h"

namespace ddprun::trainer {
namespace {

void append_or_end(std::optional<LineFile>& file, const std::string& lines) {
  if (!file) return;
  auto written = file->append(lines);
  if (written) return;
  log_warning("{}; this file ends here", written.error().message());
  file.reset();
}

std::string index_path(const OutputConfig& config, std::size_t rank) {
  return fmt::format("{}/rank-{}.txt", config.indices, rank);
}

}  // namespace

Result<void> RunOutputs::open_indices() {
  const auto& sizes = state_.index_bytes;
  const auto me = static_cast<std::size_t>(ranks_.rank());
  auto mine = LineFile::open_alone(index_path(config_, me), me < sizes.size() ? sizes[me] : 0);
  if (!mine) return std::move(mine).error();
  indices_ = std::move(*mine);
  // Files of ranks that this world no longer has.
  for (std::size_t k = static_cast<std::size_t>(ranks_.world_size()); ranks_.is_root() && k < sizes.size(); ++k) {
    auto cut = LineFile::open(index_path(config_, k), sizes[k]);
    if (!cut) return std::move(cut).error();
  }
  return {};
}

Result<void> RunOutputs::open() {
  if (!config_.indices.empty()) {
    auto opened = open_indices();
    if (!opened) return std::move(opened).error().with_context("output.indices");
  }
  if (!ranks_.is_root()) return {};
  if (!config_.metrics.empty()) {
    auto bytes = metrics_bytes_up_to(config_.metrics, state_.step, state_.best.validated_step == state_.step);
    if (!bytes) return std::move(bytes).error().with_context("output.metrics");
    auto file = LineFile::open_alone(config_.metrics, *bytes);
    if (!file) return std::move(file).error().with_context("output.metrics");
    metrics_ = std::move(*file);
  }
  if (!config_.tensorboard.empty()) {
    auto writer = TensorBoardWriter::open(config_.tensorboard, state_.step);
    if (!writer) return std::move(writer).error().with_context("output.tensorboard");
    tensorboard_ = std::move(*writer);
  }
  if (!config_.params.empty()) {
    auto possible = check_writable(config_.params);
    if (!possible) return std::move(possible).error().with_context("output.params");
  }
  return {};
}

void RunOutputs::use_samples(std::int64_t epoch, std::span<const std::int64_t> indices) {
  if (!indices_) return;
  for (const std::int64_t index : indices) used_ += fmt::format("{} {}\n", epoch, index);
}

void RunOutputs::after_step(const StepMetrics& metrics) {
  append_or_end(indices_, used_);
  append_or_end(metrics_, to_json_line(metrics));
}

void RunOutputs::add_metrics(const std::string& line) { append_or_end(metrics_, line); }

void RunOutputs::scalar(std::string_view tag, std::int64_t step, double value) {
  if (tensorboard_) tensorboard_->scalar(tag, step, value);
}

Result<void> RunOutputs::write_params(const engine::ParameterStore& store) const {
  if (config_.params.empty()) return {};
  nlohmann::ordered_json json;
  for (const engine::Parameter& p : store.parameters()) {
    const std::vector<float> values = store.read_f32(p.id);
    const bool bias = p.name.find("bias") != std::string::npos;
    if (bias && values.size() == 1) {
      json["bias"] = values[0];
    } else {
      json[bias ? "bias" : "weight"] = values;
    }
  }
  json["step"] = state_.step;
  auto file = LineFile::open(config_.params, 0);
  if (!file) return std::move(file).error().with_context("output.params");
  return file->append(json.dump() + "\n");
}

}  // namespace ddprun::trainer
