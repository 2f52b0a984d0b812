#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/result.h"
#include "common/unique_fd.h"

namespace ddprun::trainer {

// SIGTERM, SIGINT and SIGUSR1 (Slurm's and Kubernetes' warnings) as a question the loop asks after each step. Before
// armed() they end the process as usual: there is nothing to save yet. SIGUSR2 asks for a save and never ends anything;
// one that comes before the first step is answered after it.
class StopSignal {
 public:
  // Blocks the signals in this thread and all started later, so make it before any other thread.
  static Result<std::unique_ptr<StopSignal>> create();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void arm() { armed_ = true; }
  void disarm() { armed_ = false; }
  int requested() const { return signal_.load(); }            // the first signal that came since arm(), 0: none
  bool take_save_request() { return save_.exchange(false); }  // a SIGUSR2 since the last call

 private:
  StopSignal(UniqueFd signals, UniqueFd wake);
  void watch();

  UniqueFd signals_;  // signalfd
  UniqueFd wake_;     // eventfd: ends the thread
  std::atomic<bool> armed_{false};
  std::atomic<int> signal_{0};
  std::atomic<bool> save_{false};
  std::thread thread_;
};

}  // namespace ddprun::trainer
