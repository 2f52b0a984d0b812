#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/agent.h"
#include "launcher/job/report.h"
#include "launcher/process/worker_group.h"

// What happens to the workers, told while it happens: --event-log-handler, and the list of attempts in the report.
namespace ddprun::launcher {

// Hears of rounds, starts and ends. All on the launcher's one thread.
class JobObserver : public WorkerGroupListener {
 public:
  virtual void on_round(const RankSlice& round, std::chrono::milliseconds took) = 0;
  void on_drained() override {}
  virtual void on_end(const JobOutcome& outcome) = 0;
};

// Prints torch's event records (torch 2.15: one JSON object a line, names torchelastic.worker.status.<STATE> and
// torchelastic.rdzv.<STATE>), but with real time stamps, in milliseconds since 1970.
struct EventLogOptions {
  bool workers = false;     // --event-log-handler=console
  bool rendezvous = false;  // --event-log-handler=dynamic_rendezvous
  std::string run_id, role, backend, entrypoint, host_name;
  std::function<void(const std::string& line)> write;
};
std::unique_ptr<JobObserver> make_event_log(EventLogOptions options);

// Keeps one record an attempt, for the report.
class AttemptLog : public JobObserver {
 public:
  void on_round(const RankSlice& round, std::chrono::milliseconds took) override;
  void on_start(const WorkerEnv& worker, pid_t pid) override;
  void on_exit(const WorkerEnv& worker, const WorkerExit& exit) override;
  void on_end(const JobOutcome& outcome) override;

  const std::vector<AttemptRecord>& attempts() const { return attempts_; }
  // Since when there has been no attempt; nullopt before the first one has ended.
  std::optional<TimePoint> ended_at() const { return ended_at_; }

 private:
  void close(const std::string& outcome);

  std::vector<AttemptRecord> attempts_;
  TimePoint started_;
  std::optional<TimePoint> ended_at_;
};

}  // namespace ddprun::launcher
