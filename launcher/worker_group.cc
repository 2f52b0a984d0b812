#include "launcher/worker_group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "common/log.h"
#include "launcher/error_file.h"
#include "launcher/kill_tree.h"
#include "launcher/oom.h"
#include "launcher/output_hub.h"
#include "launcher/worker_stdio.h"

namespace asio = boost::asio;

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds kSourceLimit{500};  // a dead worker's pipe that somebody still holds
constexpr std::chrono::seconds kKillLimit{30};          // SIGKILL does not reach a process in the kernel (state D)
constexpr std::chrono::milliseconds kSweepDelay{20};

void set_environment(std::vector<std::string>& environment, const std::string& name, const std::string& value) {
  const std::string start = name + "=";
  for (auto& entry : environment) {
    if (entry.compare(0, start.size(), start) == 0) {
      entry = start + value;
      return;
    }
  }
  environment.push_back(start + value);
}

// Reaps a child that was sent SIGKILL; gives up after 200 ms (it hangs in the kernel).
void wait_for_death(pid_t pid) {
  for (int i = 0; i < 1000 && ::waitpid(pid, nullptr, WNOHANG) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

struct Worker {
  WorkerEnv env;
  pid_t pid = 0;
  std::unique_ptr<ChildProcess> child;
  bool ended = false;
  bool left_behind = false;  // it did not take SIGKILL; no longer ours to signal or to reap by this handle
  bool signalled = false;
  OomWatch::Verdict memory;
  WorkerStdio stdio;
  std::string error_file;
  UniqueFd recorder;

  bool runs() const { return !ended && !left_behind; }
};

}  // namespace

// Shared with the handlers that are under way; `gone` tells them that the group is no more.
class WorkerGroupState : public std::enable_shared_from_this<WorkerGroupState> {
 public:
  WorkerGroupState(asio::io_context& io, WorkerGroupOptions options)
      : executor_(io.get_executor()),
        options_(std::move(options)),
        token_(options_.guard ? options_.guard->job_token() : make_job_token()),
        memory_(options_.proc_root, options_.cgroup_root),
        sweep_timer_(io),
        child_signals_(io, SIGCHLD),
        window_signals_(io),
        hub_(
            executor_, options_.output, [this](OutputHub::Ended ended) { output_ended(std::move(ended)); },
            [](std::string problem) { log_warning("{}", problem); }) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (options_.host_name.empty()) options_.host_name = short_host_name();
  }

  void watch_signals() {
    wait_for_child_signal();
    if (hub_.is_terminal(OutputHub::Target::console_stdout) || hub_.is_terminal(OutputHub::Target::console_stderr)) {
      window_signals_.add(SIGWINCH);
      wait_for_window_signal();
    }
  }

  Result<void> start(std::vector<WorkerSpec> specs);
  asio::awaitable<Result<WorkerExit>> next_exit();
  asio::awaitable<void> stop(int signal, std::chrono::milliseconds patience);
  void signal_all(int signal);
  bool running() const { return alive_ > 0; }
  const std::vector<WorkerExit>& exits() const { return exits_; }
  WorkerEvidence evidence(LocalRank rank) const;
  int recorder_fd(LocalRank rank) const;
  std::vector<pid_t> pids() const;
  void shut();

 private:
  Result<void> start_one(WorkerSpec spec, const AttemptFolder& folder, const AttemptStdio& attempt);
  void kill_all_now();
  void renew_cgroup();
  void drop_cgroup();
  void watch(const std::shared_ptr<Worker>& worker);
  void ended(std::shared_ptr<Worker> worker, bool killed_now);
  void send(Worker& worker, int signal);
  void leave_behind(Worker& worker);
  void output_ended(OutputHub::Ended ended);

  void reap_orphans();
  void kill_escaped();
  void sweep_all();
  void wait_for_child_signal();
  void wait_for_window_signal();

  // Wakes every coroutine that waits in wait_until().
  void notify();
  asio::awaitable<void> wait_until(TimePoint limit);
  bool is_guard(pid_t pid) const { return options_.guard && pid == options_.guard->pid(); }
  bool outputs_done() const { return open_outputs_.empty(); }

  asio::any_io_executor executor_;
  WorkerGroupOptions options_;
  std::string token_;
  OomWatch memory_;
  asio::steady_timer sweep_timer_;
  asio::signal_set child_signals_, window_signals_;
  OutputHub hub_;

  std::map<std::int64_t, std::shared_ptr<Worker>> workers_;  // by local rank
  std::size_t alive_ = 0;
  std::set<std::string> escaped_from_;
  std::set<pid_t> sessions_;           // leaders of this attempt
  std::string cgroup_;                 // the workers' own control group; "" = none
  bool cgroup_holds_workers_ = false;  // the kernel did start them in it
  UniqueFd cgroup_fd_;
  std::vector<WorkerExit> exits_;
  std::size_t next_unreported_ = 0;
  std::map<int, std::int64_t> open_outputs_;  // hub stream -> local rank

  TimePoint stop_limit_ = TimePoint::max();
  bool killed_ = false;
  bool left_some_behind_ = false;
  std::list<asio::steady_timer*> waiting_;
  bool gone_ = false;
};

void WorkerGroupState::notify() {
  for (auto* timer : waiting_) timer->cancel();
}

asio::awaitable<void> WorkerGroupState::wait_until(TimePoint limit) {
  const auto self = shared_from_this();
  asio::steady_timer timer(executor_);
  timer.expires_at(limit);
  waiting_.push_back(&timer);
  const auto place = std::prev(waiting_.end());
  struct Leave {
    std::list<asio::steady_timer*>& list;
    std::list<asio::steady_timer*>::iterator place;
    ~Leave() { list.erase(place); }
  } leave{waiting_, place};
  constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
  co_await timer.async_wait(as_tuple);
}

Result<void> WorkerGroupState::start(std::vector<WorkerSpec> specs) {
  if (left_some_behind_) return Error(Errc::system, "a worker of the last attempt is stuck in the kernel");
  if (alive_ > 0) return Error(Errc::invalid_argument, "the workers of the last attempt still run");
  workers_.clear();
  exits_.clear();
  next_unreported_ = 0;
  sessions_.clear();
  stop_limit_ = TimePoint::max();
  killed_ = false;
  memory_.mark();

  AttemptFolder folder;
  if (options_.logs && !specs.empty()) {
    const StreamChoice& redirects = options_.output.redirects;
    if (options_.logs->temporary() && (redirects.all != 0 || !redirects.ranks.empty())) {
      options_.logs->keep();  // the only copy of what is redirected
    }
    const WorkerEnv& env = specs.front().env;
    auto made = options_.logs->begin_attempt(env.restart_count, env.round, static_cast<std::int64_t>(specs.size()));
    if (!made) return std::move(made).error();
    folder = *std::move(made);
    if (!options_.logs->temporary() && !folder.path.empty()) log_info("logs of this attempt: {}", folder.path);
  }
  auto stdio = AttemptStdio::make(options_, hub_, folder);
  if (!stdio) return std::move(stdio).error();
  if (options_.guard) options_.guard->expect_workers();
  renew_cgroup();
  for (WorkerSpec& spec : specs) {
    const LocalRank rank = spec.env.local_rank;
    auto started = start_one(std::move(spec), folder, *stdio);
    if (!started) {
      kill_all_now();
      next_unreported_ = exits_.size();
      return std::move(started).error().with_context("cannot start local rank " + std::to_string(rank.value));
    }
  }
  return {};
}

// Where none can be made (no right, no version 2 hierarchy) the other ways have to do. A new one each time: a group
// that was once told to kill also kills what is started in it later (seen with clone3 on Linux 6.18).
void WorkerGroupState::renew_cgroup() {
  drop_cgroup();
  if (!options_.use_cgroup) return;
  const std::string name = "ddprun-" + make_job_token().substr(sizeof "DDPRUN_JOB_TOKEN");
  for (const auto& place : cgroup_places(options_.proc_root, options_.cgroup_root, name)) {
    if (options_.guard) options_.guard->add_cgroup(place);  // first, so that it is not left behind
    if (::mkdir(place.c_str(), 0755) == 0) {
      cgroup_ = place;
      cgroup_fd_.reset(::open(cgroup_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      return;
    }
    if (options_.guard) options_.guard->remove_cgroup(place);
  }
  options_.use_cgroup = false;
}

void WorkerGroupState::drop_cgroup() {
  if (cgroup_.empty()) return;
  cgroup_fd_.reset();
  // What does not go in time (a member that hangs in the kernel) stays the guard's, which tries again at the end.
  if (remove_cgroup_folder(cgroup_) && options_.guard) options_.guard->remove_cgroup(cgroup_);
  cgroup_.clear();
}

Result<void> WorkerGroupState::start_one(WorkerSpec spec, const AttemptFolder& folder, const AttemptStdio& attempt) {
  auto worker = std::make_shared<Worker>();
  const LocalRank rank = spec.env.local_rank;
  worker->env = spec.env;
  worker->error_file = folder.error_file(rank);
  set_environment(spec.process.environment, "TORCHELASTIC_ERROR_FILE", worker->error_file);
  const std::size_t equals = token_.find('=');
  set_environment(spec.process.environment, token_.substr(0, equals), token_.substr(equals + 1));
  if (options_.recorder_bytes > 0) {
    worker->recorder.reset(::memfd_create("ddprun-recorder", MFD_CLOEXEC));
    if (!worker->recorder || ::ftruncate(worker->recorder.get(), static_cast<off_t>(options_.recorder_bytes)) != 0) {
      return Error::from_errno(errno, "memory for the flight recorder");
    }
    spec.process.inherit_fds.push_back(worker->recorder.get());
    set_environment(spec.process.environment, "DDPRUN_RECORDER_FD", std::to_string(worker->recorder.get()));
  }
  auto stdio = attempt.open(spec.env);
  if (!stdio) return std::move(stdio).error();
  spec.process.stdin_fd = stdio->stdin_fd;
  spec.process.stdout_fd = stdio->out.theirs.get();
  spec.process.stderr_fd = stdio->err.theirs.get();
  spec.process.cgroup_fd = cgroup_fd_.get();

  auto pid = spawn(spec.process, options_.inherited);
  if (!pid) return std::move(pid).error();
  if (options_.guard) options_.guard->add_session(*pid);
  auto child = ChildProcess::adopt(executor_, *pid);
  if (!child) return std::move(child).error();
  if (sessions_.empty()) cgroup_holds_workers_ = !cgroup_.empty() && is_in_cgroup(options_.proc_root, *pid, cgroup_);
  worker->pid = *pid;
  worker->child = *std::move(child);
  stdio->start_pumps(hub_);
  for (const int id : stdio->hub_ids()) open_outputs_.emplace(id, rank.value);
  worker->stdio = *std::move(stdio);
  sessions_.insert(*pid);
  ++alive_;
  workers_[rank.value] = worker;
  watch(worker);
  return {};
}

void WorkerGroupState::watch(const std::shared_ptr<Worker>& worker) {
  // Its handler may already be queued when a failed start() throws the worker away.
  worker->child->when_ended([weak = weak_from_this(), weak_worker = std::weak_ptr(worker)] {
    const auto self = weak.lock();
    const auto alive = weak_worker.lock();
    if (self && alive && !self->gone_) self->ended(alive, false);
  });
}

void WorkerGroupState::ended(std::shared_ptr<Worker> worker, bool killed_now) {
  if (worker->ended) return;
  siginfo_t info = {};
  const int peeked = ::waitid(P_PID, static_cast<id_t>(worker->pid), &info, WEXITED | WNOWAIT | WNOHANG);
  if (!killed_now && peeked == 0 && info.si_pid == 0) {  // it still runs: what follows would kill it
    watch(worker);
    return;
  }
  worker->ended = true;
  WorkerExit exit;
  exit.at = SteadyClock::now();
  exit.time = std::chrono::system_clock::now();
  if (peeked == 0 && info.si_pid != 0 && !worker->signalled) {
    ExitStatus status;
    if (info.si_code == CLD_EXITED) {
      status.code = info.si_status;
    } else {
      status.signal = info.si_status;
    }
    worker->memory = memory_.judge(worker->pid, status);
    if (worker->memory.out_of_memory) {
      const std::string& detail = worker->memory.detail;
      log_warning("rank {} was killed by the kernel because memory ran out{}{}", worker->env.rank.value,
                  detail.empty() ? "" : ": ", detail);
    }
  }
  exit.status = worker->child->reap();
  worker->child.reset();
  exit.local_rank = worker->env.local_rank;
  exit.rank = worker->env.rank;
  exit.pid = worker->pid;
  exit.stopped_by_us = worker->signalled;
  exits_.push_back(exit);
  --alive_;
  if (alive_ == 0) {
    sweep_all();
  } else {
    // Helpers that left its group; once for all workers that end together.
    escaped_from_.insert("LOCAL_RANK=" + std::to_string(worker->env.local_rank.value));
    sweep_timer_.expires_after(kSweepDelay);
    sweep_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& ec) {
      const auto self = weak.lock();
      if (!ec && self && !self->gone_) self->kill_escaped();
    });
  }
  for (const int id : worker->stdio.hub_ids()) hub_.finish(id, kSourceLimit);
  reap_orphans();
  notify();
}

asio::awaitable<Result<WorkerExit>> WorkerGroupState::next_exit() {
  const auto self = shared_from_this();
  while (true) {
    if (gone_) co_return Error(Errc::cancelled, "the worker group is gone");
    if (next_unreported_ < exits_.size()) co_return exits_[next_unreported_++];
    if (alive_ == 0 || left_some_behind_) co_return Error(Errc::cancelled, "no worker is left");
    const auto for_ever = TimePoint::max();
    co_await wait_until(for_ever);
  }
}

void WorkerGroupState::send(Worker& worker, int signal) {
  // The leader is not reaped before ended(), so the group id cannot be another's.
  signal_group(worker.pid, signal);
  const bool asks_to_end = signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
  if (asks_to_end) {
    const auto stat = read_process_stat(options_.proc_root, worker.pid);
    if (stat && stat->state == 'T') signal_group(worker.pid, SIGCONT);  // stopped: it could not even take the signal
  }
}

void WorkerGroupState::signal_all(int signal) {
  for (auto& [rank, worker] : workers_) {
    if (worker->runs()) send(*worker, signal);
  }
}

// Nobody waits for it any more: neither stop() and next_exit() nor the end of its output.
void WorkerGroupState::leave_behind(Worker& worker) {
  log_error("rank {} (pid {}) does not take SIGKILL (stuck in the kernel); it is left behind", worker.env.rank.value,
            worker.pid);
  worker.left_behind = left_some_behind_ = true;
  worker.child->abandon();
  worker.child.reset();
  for (const int id : worker.stdio.hub_ids()) hub_.finish(id, kSourceLimit);
}

asio::awaitable<void> WorkerGroupState::stop(int signal, std::chrono::milliseconds patience) {
  const auto self = shared_from_this();
  const bool again = stop_limit_ != TimePoint::max();
  const TimePoint begin = SteadyClock::now();
  stop_limit_ = std::min(stop_limit_, begin + patience);
  if (again) hub_.set_console_patience(std::chrono::milliseconds(500));
  for (auto& [rank, worker] : workers_) {
    if (!worker->runs()) continue;
    send(*worker, signal);
    worker->signalled = true;
  }
  notify();  // an earlier stop() has a new limit

  TimePoint give_up = TimePoint::max();
  while (alive_ > 0 && !left_some_behind_ && !gone_) {
    const TimePoint now = SteadyClock::now();
    if (now >= stop_limit_) {
      if (!killed_) {
        killed_ = true;
        std::string names;
        for (auto& [rank, worker] : workers_) {
          if (worker->ended) continue;
          names += (names.empty() ? "" : ", ") + std::to_string(worker->env.rank.value);
          signal_group(worker->pid, SIGKILL);
          worker->signalled = true;
        }
        if (signal != SIGKILL) log_warning("rank {} did not end in time after {}: killed", names, signal_name(signal));
      }
      if (give_up == TimePoint::max()) give_up = now + kKillLimit;
      if (now >= give_up) {
        for (auto& [rank, worker] : workers_) {
          if (worker->runs()) leave_behind(*worker);
        }
        notify();
        break;
      }
    }
    const TimePoint limit = std::min(stop_limit_ > now ? stop_limit_ : give_up, give_up);
    co_await wait_until(limit);
  }
  while (!outputs_done() && !gone_) {
    // The hub has the limits here: of a pipe that somebody holds, and of a console that takes nothing.
    const auto for_ever = TimePoint::max();
    co_await wait_until(for_ever);
  }
}

// Ends what start() began, at once and without the event loop.
void WorkerGroupState::kill_all_now() {
  for (auto& [rank, worker] : workers_) {
    if (!worker->runs()) continue;
    signal_group(worker->pid, SIGKILL);
    worker->signalled = true;
  }
  for (auto& [rank, worker] : workers_) {
    if (worker->runs()) ended(worker, true);
  }
  if (options_.guard && workers_.empty()) options_.guard->no_workers_left();
}

void WorkerGroupState::output_ended(OutputHub::Ended done) {
  const auto found = open_outputs_.find(done.id);
  if (found == open_outputs_.end()) return;
  const auto worker = workers_.find(found->second);
  if (worker != workers_.end()) worker->second->stdio.take_recent(done.id, std::move(done.recent));
  open_outputs_.erase(found);
  if (open_outputs_.empty()) notify();
}

WorkerEvidence WorkerGroupState::evidence(LocalRank rank) const {
  WorkerEvidence evidence;
  const auto found = workers_.find(rank.value);
  if (found == workers_.end()) return evidence;
  const Worker& worker = *found->second;
  constexpr std::size_t kLines = 20;
  evidence.last_lines = worker.stdio.err.last_lines(kLines);
  if (evidence.last_lines.empty()) {
    evidence.last_lines = worker.stdio.out.last_lines(kLines);
    evidence.last_lines_are_stdout = !evidence.last_lines.empty();
  }
  if (!worker.error_file.empty()) evidence.error_file_json = read_error_file(worker.error_file);
  if (options_.logs && !options_.logs->temporary()) {
    evidence.log_paths = worker.stdio.log_paths;
    if (!evidence.error_file_json.empty()) {
      evidence.error_file = worker.error_file;
      evidence.log_paths.push_back(worker.error_file);
    }
  }
  evidence.out_of_memory = worker.memory.out_of_memory;
  evidence.out_of_memory_detail = worker.memory.detail;
  return evidence;
}

int WorkerGroupState::recorder_fd(LocalRank rank) const {
  const auto found = workers_.find(rank.value);
  return found == workers_.end() ? -1 : found->second->recorder.get();
}

std::vector<pid_t> WorkerGroupState::pids() const {
  std::vector<pid_t> pids;
  for (const auto& [rank, worker] : workers_) {
    if (!worker->ended) pids.push_back(worker->pid);
  }
  return pids;
}

// Children that are not workers: orphans that came to us as their subreaper (or as PID 1). Peeks first and waits for
// that one id: waiting for "any" would take a worker's status from its handle.
void WorkerGroupState::reap_orphans() {
  std::set<pid_t> known;
  for (const auto& [rank, worker] : workers_) {
    if (worker->runs()) known.insert(worker->pid);
  }
  if (options_.guard) known.insert(options_.guard->pid());
  while (true) {
    siginfo_t info = {};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT | WNOHANG) != 0 || info.si_pid == 0) return;
    if (known.count(info.si_pid) == 0) {
      ::waitpid(info.si_pid, nullptr, WNOHANG);
      continue;
    }
    if (!is_guard(info.si_pid)) return;  // ended() reaps it and calls us again
    // The guard was killed; as a zombie it hides the others: look at each child.
    for (const pid_t pid : find_children(options_.proc_root, ::getpid())) {
      if (known.count(pid) == 0) ::waitpid(pid, nullptr, WNOHANG);
    }
    return;
  }
}

// Adopted processes of workers that have ended, recognised by their environment.
void WorkerGroupState::kill_escaped() {
  const std::set<std::string> entries = std::exchange(escaped_from_, {});
  std::set<pid_t> killed;  // each once: one that is stuck in the kernel stays our child
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : find_children(options_.proc_root, ::getpid())) {
      if (is_guard(pid) || sessions_.count(pid) != 0 || killed.count(pid) != 0) continue;
      if (!has_environment(options_.proc_root, pid, token_)) continue;
      found = std::any_of(entries.begin(), entries.end(),
                          [&](const std::string& entry) { return has_environment(options_.proc_root, pid, entry); });
      if (!found) continue;
      killed.insert(pid);
      signal_process(pid, SIGKILL);
      wait_for_death(pid);
      break;  // its own children have come to us now
    }
  }
  reap_orphans();
}

// After the last worker: everything that it left, also what left its session (an orphan of ours then).
void WorkerGroupState::sweep_all() {
  sweep_timer_.cancel();
  if (!cgroup_.empty()) kill_cgroup(cgroup_);
  // All that the workers started is in their control group: then it is dead now and needs no search.
  const int rounds = cgroup_holds_workers_ ? 0 : 200;
  const pid_t self = ::getpid();
  for (int round = 0; round < rounds; ++round) {
    bool found = false;
    for (const pid_t pid : find_children(options_.proc_root, self)) {
      if (is_guard(pid)) continue;
      if (sessions_.count(pid) != 0) continue;  // a worker's zombie, reaped elsewhere
      const auto stat = read_process_stat(options_.proc_root, pid);
      if (!stat) continue;
      const bool ours = sessions_.count(stat->session) != 0 || has_environment(options_.proc_root, pid, token_);
      if (!ours && stat->state != 'Z') {
        // In the middle of an exec, or dying: look again, but not for ever (it may have been started without one).
        if (round < 20 && shows_no_environment(options_.proc_root, pid)) {
          found = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        continue;
      }
      if (stat->state != 'Z') signal_process(pid, SIGKILL);
      // It is dead in a moment; its own children come to us then, so look again.
      found = true;
      wait_for_death(pid);
    }
    if (!found) break;
  }
  if (options_.guard) {
    for (const pid_t leader : sessions_) options_.guard->remove_session(leader);
    options_.guard->no_workers_left();
  }
}

void WorkerGroupState::wait_for_child_signal() {
  child_signals_.async_wait([weak = weak_from_this()](const boost::system::error_code& ec, int) {
    const auto self = weak.lock();
    if (ec || !self || self->gone_) return;
    self->reap_orphans();
    self->wait_for_child_signal();
  });
}

void WorkerGroupState::wait_for_window_signal() {
  window_signals_.async_wait([weak = weak_from_this()](const boost::system::error_code& ec, int) {
    const auto self = weak.lock();
    if (ec || !self || self->gone_) return;
    self->hub_.copy_window_size();
    self->signal_all(SIGWINCH);  // they have no controlling terminal that would send it
    self->wait_for_window_signal();
  });
}

void WorkerGroupState::shut() {
  kill_all_now();
  hub_.wait_until_ended(std::chrono::seconds(5));
  drop_cgroup();
  gone_ = true;
  boost::system::error_code ignored;
  child_signals_.cancel(ignored);
  window_signals_.cancel(ignored);
  sweep_timer_.cancel();
  notify();
}

namespace {

class WorkerGroupImpl final : public WorkerGroup {
 public:
  WorkerGroupImpl(asio::io_context& io, WorkerGroupOptions options)
      : state_(std::make_shared<WorkerGroupState>(io, std::move(options))) {
    state_->watch_signals();
  }
  ~WorkerGroupImpl() override { state_->shut(); }

  Result<void> start(std::vector<WorkerSpec> workers) override { return state_->start(std::move(workers)); }
  asio::awaitable<Result<WorkerExit>> next_exit() override { return state_->next_exit(); }
  asio::awaitable<void> stop(int signal, std::chrono::milliseconds patience) override {
    return state_->stop(signal, patience);
  }
  void signal_all(int signal) override { state_->signal_all(signal); }
  bool running() const override { return state_->running(); }
  std::vector<WorkerExit> exits() const override { return state_->exits(); }
  WorkerEvidence evidence(LocalRank rank) const override { return state_->evidence(rank); }
  int recorder_fd(LocalRank rank) const override { return state_->recorder_fd(rank); }
  std::vector<pid_t> pids() const override { return state_->pids(); }

 private:
  std::shared_ptr<WorkerGroupState> state_;
};

}  // namespace

std::unique_ptr<WorkerGroup> make_worker_group(asio::io_context& io, WorkerGroupOptions options) {
  return std::make_unique<WorkerGroupImpl>(io, std::move(options));
}

}  // namespace ddprun::launcher
