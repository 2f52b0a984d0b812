#include "worker/checkpoint/state.h"

#include <nlohmann/json.hpp>

namespace ddprun::checkpoint {
namespace {

constexpr int kVersion = 1;

// One list of the fields for both directions. `required`: version 1 always had it.
enum class Field : bool { later, required };
template <typename State, typename Visitor>
void visit(State& s, Visitor&& v) {
  v("step", s.step);
  v("epoch", s.epoch);
  v("cursor", s.cursor);
  v("samples", s.samples);
  v("seed", s.seed);
  v("world_size", s.world_size);
  v("epoch_loss_sum", s.epoch_loss_sum);
  v("epoch_loss_count", s.epoch_loss_count);
  v("optimizer_steps", s.optimizer_steps);
  v("skipped_steps", s.skipped_steps);
  v("scale", s.scale);
  v("growth_tracker", s.growth_tracker);
  v("schedule_batch", s.schedule_batch, Field::later);
  v("schedule_epoch", s.schedule_epoch, Field::later);
  v("best_value", s.best.value, Field::later);
  v("best_step", s.best.step, Field::later);
  v("validated_step", s.best.validated_step, Field::later);
  v("validations_without_gain", s.best.without_gain, Field::later);
  v("launchers", s.launchers, Field::later);
  v("index_bytes", s.index_bytes);
}

}  // namespace

std::string to_json(const TrainState& state) {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  visit(state, [&json](const char* name, const auto& value, Field = Field::required) { json[name] = value; });
  return json.dump(2) + "\n";
}

Result<TrainState> state_from_json(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(Errc::malformed, "not a JSON object");
  if (json.value("version", nlohmann::json()) != kVersion) {
    return Error(Errc::invalid_argument, "not of version 1, which this program reads");
  }
  TrainState state;
  std::string wrong;
  visit(state, [&json, &wrong](const char* name, auto& value, Field field = Field::required) {
    if (!wrong.empty()) return;
    const auto found = json.find(name);
    if (found == json.end() && field == Field::later) return;
    if (found == json.end()) {
      wrong = std::string("'") + name + "' is missing";
      return;
    }
    try {
      value = found->template get<std::remove_reference_t<decltype(value)>>();
    } catch (const nlohmann::json::exception&) {
      wrong = std::string("'") + name + "' is of the wrong kind";
    }
  });
  if (!wrong.empty()) return Error(Errc::malformed, wrong);
  if (state.step < 0 || state.epoch < 0 || state.cursor < 0 || state.schedule_batch < 0 || state.schedule_epoch < 0)
    return Error(Errc::malformed, "a negative position");
  return state;
}

}  // namespace ddprun::checkpoint
