#include "worker/run/evaluate.h"

#include <algorithm>
#include <vector>

namespace ddprun::trainer {

// false: a stop signal came first.
static Result<bool> wait_for(data::Loader& loader, const EvalControl& control) {
  for (;;) {
    if (control.stop_requested()) return false;
    auto ready = loader.wait(control.slice);
    if (!ready) return std::move(ready).error();
    if (*ready) break;
    control.slow.waits(loader);
  }
  control.slow.over();
  return true;
}

static void count_answer(const float* row, std::int64_t classes, std::int32_t target, EvalCounts& counts) {
  const std::int64_t answer = std::max_element(row, row + classes) - row;
  if (answer == target) ++counts.correct;
  if (target < 0 || target >= classes) return;  // loss.ignore_index
  const auto larger = std::count_if(row, row + classes, [best = row[target]](float value) { return value > best; });
  if (larger < 5) ++counts.in_top5;
  if (!counts.confusion.empty()) counts.confusion[static_cast<std::size_t>(target * classes + answer)] += 1;
}

Result<EvalCounts> evaluate_share(const data::Dataset& dataset, data::Loader& loader, Plans& plans,
                                  const engine::LossConfig& loss, std::int64_t rank, std::int64_t world_size,
                                  const EvalControl& control) {
  EvalCounts counts;
  std::vector<std::int64_t> mine;
  for (std::int64_t i = rank; i < dataset.size(); i += world_size) mine.push_back(i);
  const bool classify = dataset.spec().classes > 0 && dataset.spec().target_count() == 1;
  const std::int64_t targets_per_sample = dataset.spec().classes > 0 ? dataset.spec().target_count() : 1;
  std::vector<float> logits;
  const auto classes_of_data = static_cast<std::size_t>(dataset.spec().classes);
  if (classify && control.confusion) counts.confusion.resize(classes_of_data * classes_of_data);
  auto begun = loader.begin_epoch(0, std::move(mine));
  if (!begun) return std::move(begun).error();
  for (;;) {
    auto there = wait_for(loader, control);
    if (!there) return std::move(there).error();
    if (!*there) {
      counts.stopped = true;
      return counts;
    }
    auto batch = loader.next();
    if (!batch) return std::move(batch).error();
    if (*batch == nullptr) return counts;
    const data::Batch& b = **batch;
    auto planned = plans.get(b.size, /*training=*/false);
    if (!planned) return std::move(planned).error();
    engine::Plan& plan = *(*planned)->plan;
    const engine::Model& model = (*planned)->model;
    auto loaded = plan.load(model.input, b.inputs);
    if (loaded) loaded = plan.load(model.target, b.targets);
    if (!loaded) return std::move(loaded).error();
    plan.forward();
    std::int64_t kept = b.size * targets_per_sample;
    const auto* targets = reinterpret_cast<const std::int32_t*>(b.targets);
    if (dataset.spec().classes > 0) {
      const auto ignored = std::count(targets, targets + kept, static_cast<std::int32_t>(loss.ignore_index));
      kept -= ignored;
    }
    if (kept > 0) counts.loss_sum += plan.loss() * static_cast<double>(kept);
    counts.targets += kept;
    counts.samples += b.size;
    if (!classify) continue;
    const engine::Shape& shape = model.graph.shape(model.logits);
    const std::int64_t classes = shape.back();
    logits.resize(static_cast<std::size_t>(shape.count()));
    plan.read(model.logits, logits.data());
    for (std::int64_t i = 0; i < b.size; ++i) count_answer(logits.data() + i * classes, classes, targets[i], counts);
  }
}

}  // namespace ddprun::trainer
