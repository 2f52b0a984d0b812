#include "launcher/life/node_words.h"

#include <fmt/format.h>

#include <utility>

#include "common/exit_code.h"
#include "common/signal_names.h"

namespace ddprun::launcher {

std::string time_of_day(std::chrono::system_clock::time_point time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::hh_mm_ss clock(std::chrono::floor<std::chrono::seconds>(time - day));
  return fmt::format("{:02}:{:02}:{:02} UTC", clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

JobOutcome signalled_outcome(int signal) {
  return outcome_of(JobOutcome::Kind::signalled, exit_code::kSignalBase + signal, "stopped by " + signal_name(signal));
}

JobOutcome shutdown_outcome(rdzv::Shutdown shutdown) {
  if (shutdown.reason.empty()) shutdown.reason = "the rendezvous ended the job";
  switch (shutdown.cause) {
    case rdzv::ShutdownCause::worker_failure: {
      JobOutcome outcome;
      outcome.kind = JobOutcome::Kind::worker_failure;
      outcome.failures = std::move(shutdown.failures);
      outcome.exit_code = exit_code::kFailure;
      if (shutdown.root && *shutdown.root < outcome.failures.size()) {
        outcome.root_cause = outcome.failures[*shutdown.root];
        outcome.exit_code = exit_code_for(*outcome.root_cause);
        // More than the report says anyhow: why there was no further attempt.
        if (shutdown.reason != rdzv::describe(*outcome.root_cause)) outcome.reason = std::move(shutdown.reason);
      } else {
        outcome.reason = std::move(shutdown.reason);
      }
      return outcome;
    }
    case rdzv::ShutdownCause::too_few_nodes:
      return outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable, std::move(shutdown.reason));
    case rdzv::ShutdownCause::stopped:
    case rdzv::ShutdownCause::drained:
    case rdzv::ShutdownCause::daemon_stops:
      break;
  }
  return outcome_of(JobOutcome::Kind::stopped, exit_code::kSignalBase + kSigTerm, std::move(shutdown.reason));
}

}  // namespace ddprun::launcher
