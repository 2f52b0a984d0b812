#pragma once

#include <cstdint>

namespace ddprun::trainer {

// A world's way through an epoch.
struct EpochShape {
  std::int64_t batch = 0;  // samples of one step, all ranks together; 0: not known
  std::int64_t steps = 0;  // of a whole epoch
};

struct RunBounds {
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;       // train.max_steps; 0: none
  std::int64_t schedule_total = 0;  // schedule.total_steps; 0: follows from the run's length
};

// How far a run is, for its learning rate and for the time that is left. The schedule counts in steps of the world that
// began the run and follows the progress in the data: so the learning rate goes on without a jump, and ends where it
// should, when the number of ranks or the batch changes. Only where a number of steps bounds the run (total_steps, or a
// max_steps that ends it before its epochs do) it follows the steps. In an unchanged world both are the same number.
class Pace {
 public:
  // `begun`: of the world that began the run; not known: `here`.
  Pace(const RunBounds& bounds, const EpochShape& here, const EpochShape& begun);

  double schedule_position(std::int64_t step, std::int64_t epoch, std::int64_t cursor) const;
  std::int64_t schedule_total() const { return total_; }
  // Steps of this world until the end, from `step_in_epoch` of `epoch` on.
  std::int64_t steps_left(std::int64_t step, std::int64_t epoch, std::int64_t step_in_epoch) const;
  const EpochShape& begun() const { return begun_; }

 private:
  RunBounds bounds_;
  EpochShape here_, begun_;
  bool follows_steps_ = false;
  std::int64_t total_ = 0;
};

}  // namespace ddprun::trainer
