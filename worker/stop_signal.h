#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/result.h"
#include "common/unique_fd.h"

namespace ddprun::trainer {

// SIGTERM, SIGINT and SIGUSR1 (Slurm's and Kubernetes' warnings) as a question the loop asks after each step. Before
// armed() they end the process as usual: there is nothing to save yet.
class StopSignal {
 public:
  // Blocks the signals in this thread and all started later, so make it before any other thread.
  static Result<std::unique_ptr<StopSignal>> create();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void arm() { armed_ = true; }
  void disarm() { armed_ = false; }
  int requested() const { return signal_.load(); }  // the first signal that came since arm(), 0: none

 private:
  StopSignal(UniqueFd signals, UniqueFd wake);
  void watch();

  UniqueFd signals_;  // signalfd
  UniqueFd wake_;     // eventfd: ends the thread
  std::atomic<bool> armed_{false};
  std::atomic<int> signal_{0};
  std::thread thread_;
};

}  // namespace ddprun::trainer
