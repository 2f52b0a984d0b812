#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/worker_env.h"
#include "launcher/guard.h"
#include "launcher/log_tree.h"
#include "launcher/output.h"
#include "launcher/process.h"
#include "launcher/stdin_policy.h"

namespace ddprun::launcher {

// Everything that one round's workers need; worker i gets env[i].
struct WorkerSpec {
  // Executable, arguments, whole environment. The group fills in standard input, output and error, and puts
  // TORCHELASTIC_ERROR_FILE, DDPRUN_RECORDER_FD and its job token into the environment (replacing what is there).
  SpawnSpec process;
  WorkerEnv env;
};

// A worker that ended. `at` is our steady clock, `time` the wall clock at the same moment.
struct WorkerExit {
  LocalRank local_rank;
  Rank rank;
  pid_t pid = 0;
  ExitStatus status;
  TimePoint at;
  bool stopped_by_us = false;  // we had signalled it before
  std::chrono::system_clock::time_point time;
};

// What the report needs about a failed worker.
struct WorkerEvidence {
  std::vector<std::string> last_lines;  // of stderr, else stdout; at most 20
  std::string error_file_json;          // torch's error file if the worker wrote one
  std::vector<std::string> log_paths;   // of that worker
  bool out_of_memory = false;           // the kernel's OOM killer or a cgroup limit ended it
  std::string error_file;               // its path; "" when the worker wrote none
  std::string out_of_memory_detail;     // "limit 64 MiB of control group /job7"; "" when not known
  bool last_lines_are_stdout = false;
};

struct WorkerGroupOptions {
  InheritedSignals inherited;  // as main() found them
  OutputPolicy output;
  StdinPolicy stdin_policy;
  std::shared_ptr<Guard> guard;     // may be null
  std::shared_ptr<LogTree> logs;    // may be null: no files
  std::string host_name;            // ${hostname} of the prefix; "" = this host's short name
  std::size_t recorder_bytes = 0;   // > 0: a memfd of this size per worker, kept by us beyond its death
  std::string proc_root = "/proc";  // for tests
  std::string cgroup_root = "/sys/fs/cgroup";
  bool use_cgroup = true;  // a control group of its own for the workers where one can be made
};

// N workers of one attempt: start, watch by pidfd, stop with patience, collect exits and output.
// One thread (that of the io_context) calls everything. The object may be used for attempt after attempt.
class WorkerGroup {
 public:
  virtual ~WorkerGroup() = default;  // kills and reaps what still runs, drains (bounded)

  // Starts all. On failure those already started are stopped and the first error is returned: not_found (the program
  // or its interpreter does not exist), system ("exec /x: Permission denied").
  // The last attempt must have been stopped (stop(), which also drains) before.
  virtual Result<void> start(std::vector<WorkerSpec> workers) = 0;
  // The next worker that ended, in the order of their ends. Ends with cancelled when none is left.
  virtual boost::asio::awaitable<Result<WorkerExit>> next_exit() = 0;
  // Sends `signal` to every process group once, waits up to `patience`, then SIGKILL; returns when all are reaped,
  // grandchildren too, and their output is drained. A second call with less patience shortens the wait.
  // Also to be called when all have ended by themselves: it returns when their output is out.
  virtual boost::asio::awaitable<void> stop(int signal, std::chrono::milliseconds patience) = 0;
  virtual void signal_all(int signal) = 0;  // forward and go on
  virtual bool running() const = 0;
  virtual std::vector<WorkerExit> exits() const = 0;  // all so far, in order
  // Complete only after stop(): before it the last lines may still be in a pipe.
  virtual WorkerEvidence evidence(LocalRank local_rank) const = 0;
  // Our end of the worker's flight recorder, of this or the last attempt; -1 = none.
  virtual int recorder_fd(LocalRank local_rank) const = 0;
  virtual std::vector<pid_t> pids() const = 0;  // of those that still run
};

// Makes this process a subreaper: orphaned grandchildren come to us and are reaped. Children of this process that the
// group did not start are taken for such orphans, except the guard.
std::unique_ptr<WorkerGroup> make_worker_group(boost::asio::io_context& io, WorkerGroupOptions options);

}  // namespace ddprun::launcher
