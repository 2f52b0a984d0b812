#include "launcher/options/signal_policy.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/signal_names.h"

namespace ddprun::launcher {

SignalPolicy::SignalPolicy(std::vector<int> ends_job, std::vector<int> forwarded)
    : ends_job_(std::move(ends_job)), forwarded_(std::move(forwarded)) {}

SignalPolicy::Action SignalPolicy::on(int signal, TimePoint now) {
  const auto in = [signal](const std::vector<int>& list) {
    return std::find(list.begin(), list.end(), signal) != list.end();
  };
  if (!in(ends_job_)) return in(forwarded_) ? Action::forward : Action::ignore;
  if (!stopped_at_) {
    stopped_at_ = now;
    stopped_by_ = signal;
    return Action::stop;
  }
  if (!is_impatient(signal)) return Action::ignore;
  const bool echo = signal == stopped_by_ && now - *stopped_at_ < std::chrono::milliseconds(300);
  return echo ? Action::echo : Action::stop_now;
}

bool SignalPolicy::is_impatient(int signal) { return signal == kSigInt || signal == kSigQuit; }

}  // namespace ddprun::launcher
