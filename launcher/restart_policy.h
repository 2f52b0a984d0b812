#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "common/clock.h"
#include "common/failure_record.h"
#include "common/types.h"

namespace ddprun::launcher {

// What the ends of this node's workers mean for the node. The job's budget is the rendezvous's business. Pure.
//   exit 0    its part is done; the others run on
//   exit 75   "saved, resume me": never a failure if all of the node end so; the others get `patience` to follow
//   exit 78   a failure that a retry cannot mend
//   else      a failure
class RestartPolicy {
 public:
  enum class Verdict {
    carry_on,
    failed,     // `worker` is the one to blame
    finished,   // all exited 0
    resumable,  // all exited 75
  };
  struct Decision {
    Verdict verdict = Verdict::carry_on;
    LocalRank worker;
    bool permanent = false;
  };

  RestartPolicy(std::int64_t nproc, std::chrono::milliseconds patience) : nproc_(nproc), patience_(patience) {}

  // A worker that ended without our doing. `signal` 0: it exited with `code`.
  Decision on_exit(LocalRank worker, int code, int signal, TimePoint now);
  // At deadline(): the others did not follow the first that ended with 75.
  Decision tick(TimePoint now) const;
  std::optional<TimePoint> deadline() const { return deadline_; }

 private:
  std::int64_t nproc_;
  std::chrono::milliseconds patience_;
  std::int64_t finished_ = 0, resumable_ = 0;
  LocalRank first_resumable_;
  std::optional<TimePoint> deadline_;
};

// Pause before the workers of attempt `restart_count` start: `step`, doubled for each more, at most 60 s.
std::chrono::milliseconds backoff_before(std::int64_t restart_count, std::chrono::milliseconds step);

// ddprun's exit code for a job that this failure ended: the worker's own, 128 + its signal.
int exit_code_for(const FailureRecord& root_cause);

}  // namespace ddprun::launcher
