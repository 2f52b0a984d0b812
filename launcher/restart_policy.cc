#include "launcher/restart_policy.h"

#include <algorithm>

#include "common/exit_code.h"

namespace ddprun::launcher {

RestartPolicy::Decision RestartPolicy::on_exit(LocalRank worker, int code, int signal, TimePoint now) {
  Decision decision;
  if (signal != 0 || (code != exit_code::kOk && code != exit_code::kResumeMe)) {
    decision.verdict = Verdict::failed;
    decision.worker = worker;
    decision.permanent = signal == 0 && code == exit_code::kPermanent;
    return decision;
  }
  if (code == exit_code::kOk) {
    ++finished_;
  } else {
    if (resumable_++ == 0) {
      first_resumable_ = worker;
      deadline_ = now + patience_;
    }
  }
  if (finished_ + resumable_ < nproc_) return decision;
  deadline_.reset();
  if (resumable_ == 0) {
    decision.verdict = Verdict::finished;
  } else if (finished_ == 0) {
    decision.verdict = Verdict::resumable;
  } else {
    decision.verdict = Verdict::failed;  // some want to go on, some are through: no state that one can resume
    decision.worker = first_resumable_;
  }
  return decision;
}

RestartPolicy::Decision RestartPolicy::tick(TimePoint now) const {
  Decision decision;
  if (deadline_ && now >= *deadline_) {
    decision.verdict = Verdict::failed;
    decision.worker = first_resumable_;
  }
  return decision;
}

std::chrono::milliseconds backoff_before(std::int64_t restart_count, std::chrono::milliseconds step) {
  constexpr std::chrono::milliseconds kMost = std::chrono::seconds(60);
  if (restart_count <= 0) return std::chrono::milliseconds(0);
  auto pause = std::min(step, kMost);
  for (std::int64_t i = 1; i < restart_count && pause.count() > 0 && pause < kMost; ++i)
    pause = std::min(pause * 2, kMost);
  return pause;
}

int exit_code_for(const FailureRecord& root_cause) {
  if (root_cause.signal != 0) return exit_code::kSignalBase + root_cause.signal;
  return root_cause.exit_code != 0 ? root_cause.exit_code : exit_code::kFailure;
}

}  // namespace ddprun::launcher
