#include "launcher/process/leftover_plan.h"

#include <algorithm>

#include "common/signal_names.h"

namespace ddprun::launcher {

void LeftoverPlan::stop_waiting(int signal) {
  if (policy_ != Leftovers::wait) return;
  policy_ = Leftovers::end;
  stopped_waiting_ = true;
  asked_signal_ = signal;
}

LeftoverPlan::Step LeftoverPlan::on_look(const std::vector<Leftover>& left, bool workers_run, TimePoint now) {
  Step step;
  if (stopped_waiting_ && !stopped_waiting_at_) stopped_waiting_at_ = now;
  if (policy_ == Leftovers::keep && !hurried_) {
    step.done = true;
    return step;
  }
  const bool others = std::any_of(left.begin(), left.end(), [this](const Leftover& leftover) {
    const auto told = told_.find({leftover.pid, leftover.start_time});
    return !leftover.tracker && (told == told_.end() || !told->second.stuck);
  });
  if (others || workers_run) {
    trackers_alone_since_.reset();
  } else if (!trackers_alone_since_) {
    trackers_alone_since_ = now;
  }
  step.done = true;
  for (const Leftover& leftover : left) {
    const auto deadline = tell(leftover, now, step);
    if (deadline) step.deadline = std::min(step.deadline.value_or(TimePoint::max()), *deadline);
    if (!told_[{leftover.pid, leftover.start_time}].stuck) step.done = false;
  }
  return step;
}

// Orders what is due now; when the next thing is.
std::optional<TimePoint> LeftoverPlan::tell(const Leftover& leftover, TimePoint now, Step& step) {
  Told& told = told_[{leftover.pid, leftover.start_time}];
  if (told.stuck) return std::nullopt;
  if (told.killed) {
    if (now < *told.killed + times_.dead) return *told.killed + times_.dead;
    told.stuck = true;
    step.stuck.push_back(leftover.pid);
    return std::nullopt;
  }
  const auto order = [&](int signal) { step.orders.push_back({leftover.pid, leftover.start_time, signal}); };
  const auto kill = [&]() -> TimePoint {
    order(kSigKill);
    told.killed = now;
    return now + times_.dead;
  };
  if (leftover.tracker) {
    if (!trackers_alone_since_) return std::nullopt;
    const TimePoint end = *trackers_alone_since_ + (hurried_ ? times_.hurried_tracker : times_.tracker);
    return now < end ? end : kill();
  }
  if (hurried_ || leftover.no_patience) return kill();
  if (told.asked) {
    const TimePoint end = *told.asked + times_.asked;
    return now < end ? end : kill();
  }
  if (leftover.unheard_signal != 0) {
    order(leftover.unheard_signal);
    told.asked = now;
    return now + times_.asked;
  }
  if (policy_ != Leftovers::end) return std::nullopt;
  if (told.terminated) {
    const TimePoint end = *told.terminated + times_.terminate;
    return now < end ? end : kill();
  }
  if (asked_signal_ != 0 && !told.terminated) {
    order(asked_signal_);
    told.asked = now;
    return now + times_.asked;
  }
  const TimePoint since = std::max(leftover.since, stopped_waiting_at_.value_or(leftover.since));
  if (now < since + times_.leave) return since + times_.leave;
  // One that came late, of a worker that is long gone, has had the others' time.
  if (now >= since + times_.leave + times_.terminate) return kill();
  order(kSigTerm);
  told.terminated = now;
  return now + times_.terminate;
}

}  // namespace ddprun::launcher
