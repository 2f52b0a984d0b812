#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/signal_names.h"
#include "common/unique_fd.h"
#include "common/worker_env.h"
#include "launcher/output/log_tree.h"
#include "launcher/output/output_hub.h"
#include "launcher/process/guard.h"
#include "launcher/process/leftover_plan.h"
#include "launcher/process/oom.h"
#include "launcher/process/process.h"
#include "launcher/process/stdin_policy.h"
#include "launcher/process/sweeper.h"
#include "launcher/process/worker_cgroup.h"

namespace ddprun::launcher {

class AttemptStdio;
struct WorkerStdio;

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
  bool stopped_by_us = false;  // we had asked it to stop, or killed it, before
  bool left_behind = false;    // SIGKILL did not reach it (stuck in the kernel): it may still be there
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

// SIGKILL does not reach a process in the kernel (state D): then it is left behind.
inline constexpr std::chrono::seconds kWorkerKillLimit{30};

struct WorkerGroupOptions {
  InheritedSignals inherited;  // as main() found them
  OutputPolicy output;
  StdinPolicy stdin_policy;
  SignalScope signal_scope = SignalScope::worker;  // of forward()
  Leftovers leftovers = Leftovers::end;
  LeftoverTimes leftover_times;
  std::shared_ptr<Guard> guard;     // may be null
  std::shared_ptr<LogTree> logs;    // may be null: no files
  std::string host_name;            // ${hostname} of the prefix; "" = this host's short name
  std::size_t recorder_bytes = 0;   // > 0: a memfd of this size per worker, kept by us beyond its death
  std::string proc_root = "/proc";  // for tests
  std::string cgroup_root = "/sys/fs/cgroup";
  std::chrono::seconds kill_limit = kWorkerKillLimit;
  bool use_cgroup = true;  // a control group of its own for the workers where one can be made
};

// Called from the event loop, never from inside a call of ours (on_start: from start()). May call the group, but not
// destroy it.
class WorkerGroupListener {
 public:
  virtual ~WorkerGroupListener() = default;
  // Once for each worker when all have been started; never for those of a start that failed.
  virtual void on_start(const WorkerEnv& worker, pid_t pid) = 0;
  // Each end once, in the order of the ends.
  virtual void on_exit(const WorkerEnv& worker, const WorkerExit& exit) = 0;
  // Once after drain(): no process of the attempt is left (or it has been named), its output is out.
  virtual void on_drained() = 0;
};

// N workers of one attempt: start, watch by pidfd, pass signals, collect exits and output, and end what they leave.
// Has no patience of its own with workers: who stops them decides when asking has taken too long. One thread (that of
// the io_context) calls everything, and nothing here blocks it but the destructor and a start that fails (bounded).
// The object may be used for attempt after attempt.
//
// Makes this process a subreaper: orphaned grandchildren come to us and are reaped. Descendants of this process that
// are no workers are taken for what the workers left, except the guard and children that were there before us.
class WorkerGroup {
 public:
  WorkerGroup(boost::asio::io_context& io, WorkerGroupOptions options);
  ~WorkerGroup();  // kills and reaps what still runs, drains (bounded)
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  void add_listener(WorkerGroupListener* listener);  // must outlive the group

  // Starts all. On failure those already started are killed and reaped and the first error is returned: not_found (the
  // program or its interpreter does not exist), not_executable, unsupported (the kernel or a sandbox lacks a call),
  // exhausted (a limit on processes, descriptors or memory), system, invalid_argument.
  // No worker of the last attempt may run any more. If it has not been drained, that is cut short (bounded, without
  // on_drained()).
  Result<void> start(std::vector<WorkerSpec> workers);
  // Sends `signal` and marks the worker's end as stopped_by_us. A stopped (SIGSTOP) worker goes on, to hear it.
  void ask_to_stop(LocalRank worker, int signal, SignalScope scope);
  // SIGKILL to it and, when it is dead, to its helpers. One that is stuck in the kernel is left behind after
  // options.kill_limit: its on_exit() says so, and no further start() is possible.
  void kill(LocalRank worker);
  void forward(int signal);  // to all that run, by options.signal_scope; the job goes on
  // No more starts in this attempt: when all workers have ended, their helpers are ended by the leftovers policy, then
  // comes the rest of the output, then on_drained(). To be called once an attempt, at any time, also after a start()
  // that failed.
  void drain();
  // --leftovers=wait is over, in this attempt: helpers are ended as with --leftovers=end. `signal` not 0: they get it
  // at once, and have what leftover_times.asked gives them.
  void end_helpers(int signal) { sweeper_.stop_waiting(signal); }
  // drain() with no more patience: helpers are killed now, the console gets little time.
  void hurry();

  bool running() const { return alive_ > 0; }
  const std::vector<WorkerExit>& exits() const { return exits_; }  // of this attempt so far, in order
  // Complete only after on_drained(): before it the last lines may still be in a pipe. Reads files (bounded): an ended
  // worker's error file once, its last lines once after on_drained().
  const WorkerEvidence& evidence(LocalRank local_rank);
  // Our end of the worker's flight recorder, of this or the last attempt; -1 = none.
  int recorder_fd(LocalRank local_rank) const;
  std::vector<pid_t> pids() const;  // of those that still run, by local rank

 private:
  struct Worker;
  enum class Drain { no, wanted, helpers, output, told };

  void open_hub();
  Result<void> start_pumps(WorkerStdio& stdio);
  Result<void> start_all(std::vector<WorkerSpec> specs);
  Result<void> start_one(WorkerSpec spec, const AttemptFolder& folder, const AttemptStdio& attempt);
  void give_recorder(Worker& worker, SpawnSpec& process);
  void watch(const std::shared_ptr<Worker>& worker);
  void look_at(const std::shared_ptr<Worker>& worker);
  void take_exit(Worker& worker, const ExitStatus& status, bool left_behind);
  WorkerEvidence read_evidence(Worker& worker) const;
  void judge_memory(Worker& worker, const siginfo_t& info);
  void leave_behind(Worker& worker);
  void end_now();
  void give_up_drain();
  void send(Worker& worker, int signal, SignalScope scope);

  SweeperOptions sweeper_options();
  void finish_output(Worker& worker);
  void output_ended(OutputHub::Ended ended);
  void advance();

  void reap_orphans();
  void wait_for_child_signal();
  void wait_for_window_signal();
  template <typename Handler>
  auto while_alive(Handler handler);

  boost::asio::io_context& io_;
  WorkerGroupOptions options_;
  std::vector<WorkerGroupListener*> listeners_;
  OomWatch memory_;
  boost::asio::signal_set child_signals_, window_signals_;
  std::optional<OutputHub> hub_;  // from the first start() on
  WorkerCgroup cgroup_;
  Sweeper sweeper_;

  std::map<std::int64_t, std::shared_ptr<Worker>> workers_;  // by local rank
  std::size_t alive_ = 0;
  std::string token_;  // of this attempt
  std::vector<WorkerExit> exits_;
  std::map<int, std::int64_t> open_outputs_;  // hub stream -> local rank
  Drain drain_ = Drain::told;
  bool hurried_ = false;
  bool left_some_behind_ = false;
  bool said_no_recorder_ = false;
  bool follows_window_ = false;
  std::shared_ptr<const bool> alive_token_ = std::make_shared<const bool>(true);  // handlers look whether we are gone
};

}  // namespace ddprun::launcher
