#include "worker/run/plans.h"

#include "worker/run/advice.h"

namespace ddprun::trainer {

Result<PlannedModel*> Plans::get(std::int64_t batch_size, bool training) {
  const std::pair key(batch_size, training);
  if (const auto found = plans_.find(key); found != plans_.end()) return &found->second;
  auto model = engine::build_model(model_, loss_, batch_size);
  if (!model) return std::move(model).error();
  engine::PlanOptions options;
  options.training = training;
  options.activation_checkpointing = activation_checkpointing_;
  auto plan = engine::Plan::create(model->graph, store_, options);
  if (!plan && plan.error().code() == Errc::system) {
    return Error(Errc::system, plan.error().message() + ": " + memory_advice());
  }
  if (!plan) return std::move(plan).error();
  return &plans_.emplace(key, PlannedModel{std::move(*model), std::move(*plan)}).first->second;
}

std::size_t Plans::activation_bytes() const {
  std::size_t sum = 0;
  for (const auto& [key, planned] : plans_) sum += planned.plan->memory().activation_bytes;
  return sum;
}

}  // namespace ddprun::trainer
