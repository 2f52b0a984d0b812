#pragma once

#include <optional>
#include <vector>

#include "common/clock.h"

namespace ddprun::launcher {

// What a signal to the launcher means. Decides only.
// The first signal of `ends_job` stops the job gracefully. After that SIGINT and SIGQUIT (somebody at a terminal is
// impatient) stop it at once; all others, which schedulers like to send twice, change nothing. The same signal once
// more within 300 ms is its echo: a terminal and a wrapper both pass Ctrl-C on.
class SignalPolicy {
 public:
  enum class Action { stop, stop_now, forward, echo, ignore };

  SignalPolicy(std::vector<int> ends_job, std::vector<int> forwarded);

  Action on(int signal, TimePoint now);
  static bool is_impatient(int signal);  // SIGINT or SIGQUIT: the second one kills

 private:
  std::vector<int> ends_job_, forwarded_;
  std::optional<TimePoint> stopped_at_;
  int stopped_by_ = 0;
};

}  // namespace ddprun::launcher
