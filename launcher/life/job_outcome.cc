#include "launcher/life/job_outcome.h"

#include <utility>

#include "common/exit_code.h"

namespace ddprun::launcher {

JobOutcome outcome_of(JobOutcome::Kind kind, int exit_code, std::string reason) {
  JobOutcome outcome;
  outcome.kind = kind;
  outcome.exit_code = exit_code;
  outcome.reason = std::move(reason);
  return outcome;
}

int exit_code_for(const FailureRecord& root_cause) {
  if (root_cause.signal != 0) return exit_code::kSignalBase + root_cause.signal;
  if (root_cause.exit_code == 0 || root_cause.exit_code == exit_code::kResumeMe) return exit_code::kFailure;
  return root_cause.exit_code;
}

}  // namespace ddprun::launcher
