#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>

#include "common/failure_record.h"
#include "launcher/job/event_log.h"
#include "launcher/output/output.h"

namespace ddprun::launcher {

// Whether the last lines of a worker stand on the console already, where the report goes too.
class OwnConsole : public JobObserver {
 public:
  explicit OwnConsole(OutputPolicy policy);

  void on_round(const RankSlice&, std::chrono::milliseconds) override {}
  void on_start(const WorkerEnv&, pid_t) override {}
  void on_exit(const WorkerEnv& worker, const WorkerExit& exit) override { ours_[exit.pid] = worker.rank; }
  void on_end(const JobOutcome&) override {}

  // Its last lines are of either stream, so both must have gone to one place. False for a worker of another node.
  bool shows(const FailureRecord& failure) const;

 private:
  const OutputPolicy policy_;
  bool one_console_ = false;
  std::map<pid_t, Rank> ours_;  // workers of this node that have ended
};

}  // namespace ddprun::launcher
