#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/worker_env.h"
#include "launcher/process.h"

namespace ddprun::launcher {

// Everything that one round's workers need; worker i gets env[i].
struct WorkerSpec {
  SpawnSpec process;  // executable, arguments, whole environment; stdio is filled by the group
  WorkerEnv env;
};

// A worker that ended. `at` is our steady clock.
struct WorkerExit {
  LocalRank local_rank;
  Rank rank;
  pid_t pid = 0;
  ExitStatus status;
  TimePoint at;
  bool stopped_by_us = false;  // we had signalled it before
};

// What the report needs about a failed worker.
struct WorkerEvidence {
  std::vector<std::string> last_lines;  // of stderr, else stdout; at most 20
  std::string error_file_json;          // torch's error file if the worker wrote one
  std::vector<std::string> log_paths;   // of that worker
  bool out_of_memory = false;           // the kernel's OOM killer or a cgroup limit ended it
};

// N workers of one attempt: start, watch by pidfd, stop with patience, collect exits and output.
class WorkerGroup {
 public:
  virtual ~WorkerGroup() = default;

  // Starts all. On failure those already started are stopped and the first error is returned.
  virtual Result<void> start(std::vector<WorkerSpec> workers) = 0;
  // The next worker that ended, in the order of their ends. Ends with cancelled when none is left.
  virtual boost::asio::awaitable<Result<WorkerExit>> next_exit() = 0;
  // Sends `signal` to every process group once, waits up to `patience`, then SIGKILL; returns when all are reaped,
  // grandchildren too, and their output is drained. A second call with less patience shortens the wait.
  virtual boost::asio::awaitable<void> stop(int signal, std::chrono::milliseconds patience) = 0;
  virtual void signal_all(int signal) = 0;  // forward and go on
  virtual bool running() const = 0;
  virtual std::vector<WorkerExit> exits() const = 0;  // all so far, in order
  virtual WorkerEvidence evidence(LocalRank local_rank) const = 0;
};

}  // namespace ddprun::launcher
