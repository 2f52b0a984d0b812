#include "worker/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddprun::optim {

double Schedule::at(double t) const {
  const auto warmup = static_cast<double>(warmup_steps);
  if (t < warmup) {
    const double progress = t / warmup;
    return lr * (warmup_factor + (1 - warmup_factor) * progress);
  }
  const double s = t - warmup;
  const double span = static_cast<double>(std::max<std::int64_t>(total_steps - warmup_steps, 1));
  const double progress = std::min(1.0, s / span);
  switch (kind) {
    case ScheduleKind::constant:
      return lr;
    case ScheduleKind::cosine:
      return min_lr + (lr - min_lr) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    case ScheduleKind::linear:
      return lr + (min_lr - lr) * progress;
    case ScheduleKind::one_cycle: {
      // torch counts to total - 1: the last step has the final rate.
      const double rise = pct_start * static_cast<double>(total_steps) - 1;
      const double last = static_cast<double>(std::max<std::int64_t>(total_steps - 1, 1));
      const auto between = [](double from, double to, double share) {
        return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * std::clamp(share, 0.0, 1.0)));
      };
      const double first = lr / div_factor;
      if (t <= rise) return between(first, lr, t / rise);
      return between(lr, first / final_div_factor, last > rise ? (t - rise) / (last - rise) : 1);
    }
    case ScheduleKind::step:
      return lr * std::pow(gamma, std::floor(s / static_cast<double>(std::max<std::int64_t>(step_size, 1))));
    case ScheduleKind::multi_step:
      return lr * std::pow(gamma,
                           static_cast<double>(std::count_if(milestones.begin(), milestones.end(), [s](std::int64_t m) {
                             return s >= static_cast<double>(m);
                           })));
  }
  return lr;
}

}  // namespace ddprun::optim
