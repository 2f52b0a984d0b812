#include "worker/run/same_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "worker/ranks/agree.h"

namespace ddprun::trainer {
namespace {

// One string for the wire: "name\nvalue\n" again and again; no value holds a line's end.
std::string pack(const Traits& traits) {
  std::string text;
  for (const auto& [name, value] : traits) text += name + "\n" + value + "\n";
  return text;
}

Traits unpack(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(text.substr(at, end - at));
  }
  Traits traits;
  for (std::size_t i = 0; i + 1 < lines.size(); i += 2) traits.emplace_back(lines[i], lines[i + 1]);
  return traits;
}

const char* given(const std::string& path) { return path.empty() ? "none" : "given"; }

}  // namespace

Traits traits_of(const TrainerConfig& c, const RunData& data) {
  Traits traits;
  const auto add = [&traits](const char* name, const auto& value) {
    std::string text = fmt::format("{}", value);
    std::replace(text.begin(), text.end(), '\n', ' ');
    traits.emplace_back(name, std::move(text));
  };
  add("train.seed", c.train.seed);
  add("training samples", data.train.dataset->size());
  add("validation samples", data.validation.dataset != nullptr ? data.validation.dataset->size() : 0);
  add("data.train", data.train.fingerprint);
  add("data.validation", data.validation.fingerprint);
  add("data.batch_size", c.data.batch_size);
  add("data.shuffle", c.data.shuffle);
  add("data.drop_last", c.data.drop_last);
  add("data.drop_short_batch", c.data.drop_short_batch);
  add("data.normalize",
      fmt::format("mean {} std {}", fmt::join(c.data.transform.mean, " "), fmt::join(c.data.transform.std, " ")));
  add("data.augment", fmt::format("crop {} flip {}", c.data.transform.crop, c.data.transform.flip));
  add("model.activation", static_cast<int>(c.model.activation));
  add("loss", fmt::format("kind {} label_smoothing {} ignore_index {}", static_cast<int>(c.loss.kind),
                          c.loss.label_smoothing, c.loss.ignore_index));
  const optim::OptimizerConfig& o = c.update.optimizer;
  add("optimizer", fmt::format("kind {} momentum {} dampening {} weight_decay {} nesterov {} betas {} {} eps {} ema {}",
                               static_cast<int>(o.kind), o.momentum, o.dampening, o.weight_decay, o.nesterov, o.beta1,
                               o.beta2, o.eps, o.average));
  add("optimizer.lr", c.update.schedule.lr);
  add("optimizer.clip_grad_norm", c.update.clip_grad_norm);
  add("schedule",
      fmt::format("kind {} warmup {} from {} min_lr {} total {} step_size {} gamma {} milestones {}",
                  static_cast<int>(c.update.schedule.kind), c.update.schedule.warmup_steps,
                  c.update.schedule.warmup_factor, c.update.schedule.min_lr, c.update.schedule.total_steps,
                  c.update.schedule.step_size, c.update.schedule.gamma, fmt::join(c.update.schedule.milestones, " ")));
  add("train.epochs", c.train.epochs);
  add("train.max_steps", c.train.max_steps);
  add("train.accumulate", c.train.accumulate);
  add("train.on_nan", c.train.on_nan == OnNan::skip ? "skip" : "stop");
  add("ddp.sync_buffers", c.ddp.sync_buffers == SyncBuffers::step ? "step" : "eval");
  add("precision",
      fmt::format("dtype {} loss_scaling {} init_scale {} growth_interval {}", static_cast<int>(c.precision.dtype),
                  c.precision.scale_loss, c.precision.scaler.scale, c.precision.scaler.growth_interval));
  add("validation", fmt::format("every_steps {} at_start {} patience {} min_delta {}", c.validation.every_steps,
                                c.validation.at_start, c.validation.patience, c.validation.min_delta));
  add("validation.confusion", given(c.validation.confusion));
  // The ranks meet for a save, so they must know together when there is one.
  add("checkpoint.dir", given(c.checkpoint.dir));
  add("checkpoint.every_steps", c.checkpoint.every_steps);
  add("checkpoint.best", c.checkpoint.best.empty() ? "none" : c.checkpoint.best);
  add("output.indices", given(c.output.indices));
  return traits;
}

std::string traits_to_json(const Traits& traits) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : traits) json[name] = value;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Traits traits_from_json(const std::string& text) {
  Traits traits;
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return traits;
  for (const auto& [name, value] : json.items()) {
    if (value.is_string()) traits.emplace_back(name, value.get<std::string>());
  }
  return traits;
}

Result<void> same_as_rank_zero(comm::Communicator& communicator, const Traits& mine) {
  if (communicator.world_size() == 1) return {};
  auto text = text_of_rank_zero(communicator, pack(mine));
  if (!text) return std::move(text).error();
  const Traits theirs = unpack(*text);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (i < theirs.size() && theirs[i].first == mine[i].first) {
      if (theirs[i].second == mine[i].second) continue;
      return Error(Errc::invalid_argument, fmt::format("{}: rank 0 has {}, rank {} has {}", mine[i].first,
                                                       theirs[i].second, communicator.rank(), mine[i].second));
    }
    return Error(Errc::invalid_argument, "rank 0 runs another version of the trainer than this rank");
  }
  return {};
}

}  // namespace ddprun::trainer
