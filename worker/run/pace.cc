#include "worker/run/pace.h"

#include <algorithm>

namespace ddprun::trainer {

Pace::Pace(const RunBounds& bounds, const EpochShape& here, const EpochShape& begun)
    : bounds_(bounds), here_(here), begun_(begun.batch > 0 && begun.steps > 0 ? begun : here) {
  total_ = begun_.steps * bounds.epochs;
  if (bounds.max_steps > 0 && bounds.max_steps < total_) {
    total_ = bounds.max_steps;
    follows_steps_ = true;
  }
  if (bounds.schedule_total > 0) {
    total_ = bounds.schedule_total;
    follows_steps_ = true;
  }
}

double Pace::schedule_position(std::int64_t step, std::int64_t epoch, std::int64_t cursor) const {
  if (follows_steps_) return static_cast<double>(step);
  // Whole, and equal to `step`, as long as the world is the one that began.
  const double in_epoch = static_cast<double>(cursor) / static_cast<double>(begun_.batch);
  const auto whole = static_cast<double>(begun_.steps);
  return static_cast<double>(epoch) * whole + std::min(in_epoch, whole);
}

std::int64_t Pace::steps_left(std::int64_t step, std::int64_t epoch, std::int64_t step_in_epoch) const {
  std::int64_t left = (bounds_.epochs - epoch) * here_.steps - step_in_epoch;
  if (bounds_.max_steps > 0) left = std::min(left, bounds_.max_steps - step);
  return std::max<std::int64_t>(0, left);
}

}  // namespace ddprun::trainer
