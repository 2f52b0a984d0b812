#include "worker/run/validation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/log.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/report/progress.h"

namespace ddprun::trainer {

std::vector<Figure> figures_of(const EvalCounts& counts, const data::SampleSpec& spec) {
  std::vector<Figure> figures = {{"loss", counts.loss()}};
  if (spec.classes > 0 && spec.target_count() > 1) figures.push_back({"perplexity", std::exp(counts.loss())});
  if (spec.classes > 0 && spec.target_count() == 1) {
    figures.push_back({"accuracy", counts.accuracy()});
    if (spec.classes > 5) figures.push_back({"top5", counts.top5_accuracy()});
  }
  return figures;
}

std::string words_of(const std::vector<Figure>& figures) {
  std::string text;
  for (const Figure& figure : figures) {
    const bool share = figure.name == "accuracy" || figure.name == "top5";
    text += fmt::format("{}validation {} {}", text.empty() ? "" : ", ", figure.name,
                        share ? fmt::format("{:.2f} %", 100 * figure.value) : format_loss(figure.value));
  }
  return text;
}

Validation::Validation(const TrainerConfig& config, Ranks& ranks, RunModel& model, RunData& data,
                       checkpoint::TrainState& state, const StopSignal& stop, SlowRead& slow)
    : config_(config), ranks_(ranks), model_(model), data_(data), state_(state), stop_(stop), slow_(slow) {}

Result<void> Validation::check() const {
  if (!wanted()) return {};
  const data::SampleSpec& spec = data_.validation.dataset->spec();
  std::vector<std::string> names;
  for (const Figure& figure : figures_of(EvalCounts(), spec)) names.push_back(figure.name);
  const std::string& best = config_.checkpoint.best;
  if (!best.empty() && std::find(names.begin(), names.end(), best) == names.end()) {
    return Error(Errc::invalid_argument, fmt::format("checkpoint.best: {} is not among the figures of these data: {}",
                                                     best, fmt::join(names, ", ")));
  }
  if (!config_.validation.confusion.empty() && (spec.classes == 0 || spec.target_count() != 1)) {
    return Error(Errc::invalid_argument, "validation.confusion: these data have no class for each sample");
  }
  return {};
}

bool Validation::after_step() const {
  const std::int64_t every = config_.validation.every_steps;
  return wanted() && every > 0 && state_.step % every == 0;
}

Result<bool> Validation::run(std::chrono::milliseconds file_timeout) {
  auto sent = broadcast_buffers(ranks_, model_);
  if (!sent) return std::move(sent).error();
  const data::Dataset& dataset = *data_.validation.dataset;
  const EvalControl control{[this] { return stop_.requested() != 0; }, wait_slice(config_.ddp.timeout), slow_,
                            !config_.validation.confusion.empty()};
  model_.optimizer->swap_average();
  auto counts = evaluate_share(dataset, *data_.validation.loader, *model_.plans, config_.loss, ranks_.rank(),
                               ranks_.world_size(), control);
  model_.optimizer->swap_average();
  // Shares differ by one sample at most, but a rank may be slow: wait as for files.
  ranks_.communicator().set_timeout(file_timeout);
  auto all = ranks_.check_on_all(counts ? model_.kernels->status()
                                        : Result<void>(counts.error().with_context("data.validation")));
  ranks_.communicator().set_timeout(config_.ddp.timeout);
  if (!all) return std::move(all).error();
  std::vector<double> sums = {counts->loss_sum,
                              static_cast<double>(counts->targets),
                              static_cast<double>(counts->correct),
                              static_cast<double>(counts->in_top5),
                              static_cast<double>(counts->samples),
                              counts->stopped ? 1.0 : 0.0};
  sums.insert(sums.end(), counts->confusion.begin(), counts->confusion.end());
  auto summed = ddp::sync_metrics(ranks_.communicator(), sums, comm::Reduce::sum);
  if (!summed) return std::move(summed).error();
  if (sums[5] > 0) return false;
  counts_ = EvalCounts{.loss_sum = sums[0],
                       .targets = static_cast<std::int64_t>(sums[1]),
                       .correct = static_cast<std::int64_t>(sums[2]),
                       .in_top5 = static_cast<std::int64_t>(sums[3]),
                       .samples = static_cast<std::int64_t>(sums[4]),
                       .confusion = {sums.begin() + 6, sums.end()},
                       .stopped = false};
  figures_ = figures_of(counts_, dataset.spec());
  judge();
  if (ranks_.is_root() && !std::isfinite(counts_.loss())) {
    log_warning("step {}: the validation loss is {}: the model or data.validation holds numbers that are not finite",
                state_.step, format_loss(counts_.loss()));
  }
  return true;
}

// Equal on all ranks: the figures are.
void Validation::judge() {
  checkpoint::BestState& best = state_.best;
  validated_at_ = state_.step;
  is_news_ = best.validated_step != state_.step;
  is_best_ = false;
  const std::string& wanted = config_.checkpoint.best;
  const auto found = std::find_if(figures_.begin(), figures_.end(),
                                  [&wanted](const Figure& f) { return f.name == (wanted.empty() ? "loss" : wanted); });
  if (!is_news_ || found == figures_.end()) return;
  best.validated_step = state_.step;
  const bool lower = found->name == "loss" || found->name == "perplexity";
  const double gain = lower ? best.value - found->value : found->value - best.value;
  is_best_ = std::isfinite(found->value) && (best.step < 0 || gain > 0);
  const bool counts = std::isfinite(found->value) && (best.step < 0 || gain > config_.validation.min_delta);
  best.without_gain = counts ? 0 : best.without_gain + 1;
  if (!is_best_) return;
  best.value = found->value;
  best.step = state_.step;
}

std::string Validation::json_line() const {
  nlohmann::ordered_json json;
  json["step"] = state_.step;
  json["epoch"] = state_.epoch + 1;
  for (const Figure& figure : figures_) json["validation"][figure.name] = figure.value;
  json["validation"]["samples"] = counts_.samples;
  return json.dump() + "\n";
}

bool Validation::patience_is_over() const {
  return config_.validation.patience > 0 && state_.best.without_gain >= config_.validation.patience;
}

Result<void> Validation::write_confusion() const {
  if (config_.validation.confusion.empty() || counts_.confusion.empty()) return {};
  const data::SampleSpec& spec = data_.validation.dataset->spec();
  ConfusionMatrix matrix{class_names_of(spec.class_names, spec.classes), counts_.confusion};
  auto written = write_confusion_files(config_.validation.confusion, matrix);
  if (!written) return std::move(written).error().with_context("validation.confusion");
  return {};
}

}  // namespace ddprun::trainer
