#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/failure_record.h"

namespace ddprun::launcher {

// How the job ended, as seen from this node. The report (launcher/job/report.h) prints it, main() exits with the code.
struct JobOutcome {
  enum class Kind {
    success,         // all workers of the job exited 0 (or: this node was a spare of such a job)
    worker_failure,  // beyond the budget; root_cause is set, the same on every node
    resume_me,       // every worker ended with 75
    signalled,       // we were told to stop
    unavailable,     // rendezvous timed out, refused us, or too few nodes are left
    stopped,         // an operator stopped the job (ddpctl stop) or drained this node
    cannot_start,    // this node could not start: port taken, program missing, ...
  };

  Kind kind = Kind::success;
  int exit_code = 0;   // by common/exit_code.h, --exit-code=ddprun
  std::string reason;  // one sentence for stderr; "" on success
  std::optional<FailureRecord> root_cause;
  // What else a person should know of the end: "rank 1 ended with 0 at 04:12:07, 40 s before the others".
  std::vector<std::string> notes;
  std::vector<FailureRecord> failures;  // of the whole job, by the rendezvous's clock, root cause included
};

JobOutcome outcome_of(JobOutcome::Kind kind, int exit_code, std::string reason);

// ddprun's exit code for a job that this failure ended: the worker's own, 128 + its signal. Not 75: that says that
// every worker saved its state, and such a job has not failed.
int exit_code_for(const FailureRecord& root_cause);

}  // namespace ddprun::launcher
