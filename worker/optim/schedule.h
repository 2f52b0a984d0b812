#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::optim {

enum class ScheduleKind : std::uint8_t { constant, cosine, step, multi_step, linear, one_cycle };

// Learning rate as a pure function of the step (or epoch) t, from 0; t need not be whole: a run that goes on with
// another world size stands between two steps of the one that it began with. During warm-up lr rises linearly from
// warmup_factor * lr to lr; the schedule proper starts at its own t = 0 when warm-up ends (torch's SequentialLR).
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 0.1;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  double warmup_factor = 0;                   // 0: t/warmup as nanoGPT; torch.LinearLR's start_factor otherwise
  std::int64_t total_steps = 0;               // cosine, linear: t at which min_lr is reached, warm-up included
  std::int64_t step_size = 30;                // step
  double gamma = 0.1;                         // step, multi_step
  std::vector<std::int64_t> milestones = {};  // multi_step
  // one_cycle, as torch's OneCycleLR: from lr / div_factor up to lr in the first pct_start of the steps, then down to
  // lr / div_factor / final_div_factor, by cosines. No warm-up beside it.
  double pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;

  double at(double t) const;
};

}  // namespace ddprun::optim
