#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/flight_recorder.h"
#include "launcher/job/event_log.h"
#include "launcher/process/worker_group.h"

namespace ddprun::launcher {

// Reads the flight recorders of this node's workers: at the first failure of an attempt, for the last words, and when
// an operator asks. Workers that do not use ddprun's collectives leave theirs empty and are passed over.
class FlightObserver : public JobObserver {
 public:
  // The group that the next rounds are run with, and how many workers it has; must outlive the rounds.
  void watch(const WorkerGroup* group, std::int64_t workers) {
    group_ = group;
    workers_ = workers;
  }

  void on_round(const RankSlice& round, std::chrono::milliseconds took) override;
  void on_start(const WorkerEnv&, pid_t) override {}
  void on_exit(const WorkerEnv& worker, const WorkerExit& exit) override;
  void on_end(const JobOutcome& outcome) override;

  // Who waited where, and for whom, when the first worker of the last attempt failed; "" = nobody.
  const std::string& verdict() const { return verdict_; }
  // For `ddpctl flight`; see pack_flight().
  std::string pack(std::size_t max_bytes) const;

 private:
  std::vector<FlightLog> read() const;

  const WorkerGroup* group_ = nullptr;
  std::int64_t workers_ = 0;
  bool seen_failure_ = false;
  std::string verdict_;
};

}  // namespace ddprun::launcher
