#include "launcher/process/worker_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "common/log.h"
#include "common/system.h"
#include "launcher/output/error_file.h"
#include "launcher/process/kill_tree.h"
#include "launcher/process/limits.h"
#include "launcher/process/worker_stdio.h"

namespace asio = boost::asio;

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kSourceLimit{500};      // a dead worker's pipe that somebody still holds
constexpr milliseconds kHurriedPatience{500};  // with a console, and with output of an attempt that is given up
constexpr milliseconds kTracedLook{50};        // a dead worker that its tracer (strace, gdb) has not let go yet
constexpr seconds kTracedLimit{2};
// Without the event loop: at a start that failed, and at the end of a group that nobody has drained.
constexpr milliseconds kEndWorkers{1'000}, kEndHelpers{2'000}, kEndOutput{5'000};

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

// An error about descriptors says how many there may be.
Error name_limit(Error error) {
  const std::string& message = error.message();
  const bool files = message.find(std::strerror(EMFILE)) != std::string::npos;
  if (error.code() != Errc::exhausted || !files || message.find("ulimit") != std::string::npos) return error;
  return Error(error.code(), message + ": the limit on open files is reached (" + descriptor_limit_text() + ")");
}

// A flight recorder larger than our soft limit on file sizes must not fail: the limit is meant for the workers' files,
// and they get it back.
void lift_file_size_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace

struct WorkerGroup::Worker {
  explicit Worker(asio::io_context& io) : timer(io) {}

  WorkerEnv env;
  pid_t pid = 0;
  std::unique_ptr<ChildProcess> child;
  bool ended = false;
  bool asked = false, killed = false;
  int asked_with = 0;                   // signal that the process alone has heard
  std::optional<TimePoint> dead_since;  // and not ours to reap yet
  asio::steady_timer timer;             // until it is left behind, or looked at again
  OomWatch::Verdict memory;
  WorkerStdio stdio;
  std::string error_file;
  std::optional<std::string> error_file_json;  // read when the worker had ended
  WorkerEvidence evidence;                     // as it was last read
  bool evidence_complete = false;
  UniqueFd recorder;
};

// A handler that does nothing when this group is gone by then.
template <typename Handler>
auto WorkerGroup::while_alive(Handler handler) {
  return [weak = std::weak_ptr(alive_token_), handler = std::move(handler)](auto... arguments) {
    if (!weak.expired()) handler(arguments...);
  };
}

WorkerGroup::WorkerGroup(asio::io_context& io, WorkerGroupOptions options)
    : io_(io),
      options_(std::move(options)),
      memory_(options_.proc_root, options_.cgroup_root),
      child_signals_(io, SIGCHLD),
      window_signals_(io),
      cgroup_(options_.proc_root, options_.cgroup_root, options_.use_cgroup, options_.guard),
      sweeper_(io, sweeper_options(), cgroup_) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  lift_file_size_limit();
  if (options_.host_name.empty()) options_.host_name = short_host_name();
  wait_for_child_signal();
}

void WorkerGroup::open_hub() {
  if (hub_) return;
  hub_.emplace(
      io_.get_executor(), options_.output, [this](OutputHub::Ended ended) { output_ended(std::move(ended)); },
      [](std::string problem) { log_warning("{}", problem); });
  const bool terminal =
      hub_->is_terminal(OutputHub::Target::console_stdout) || hub_->is_terminal(OutputHub::Target::console_stderr);
  if (terminal && !std::exchange(follows_window_, true)) {
    window_signals_.add(SIGWINCH);
    wait_for_window_signal();
  }
}

// The hub starts its thread with the first stream, for which there may be no room.
Result<void> WorkerGroup::start_pumps(WorkerStdio& stdio) {
  try {
    stdio.start_pumps(*hub_);
    return {};
  } catch (const std::system_error& e) {
    return start_error(e.code().value(), "cannot start the thread that moves the workers' output");
  }
}

WorkerGroup::~WorkerGroup() {
  alive_token_.reset();
  if (drain_ != Drain::told) {
    end_now();
    for (auto& [rank, worker] : workers_) finish_output(*worker);
    if (hub_) hub_->wait_until_ended(kEndOutput);
  }
}

SweeperOptions WorkerGroup::sweeper_options() {
  SweeperOptions options;
  options.policy = options_.leftovers;
  options.times = options_.leftover_times;
  options.proc_root = options_.proc_root;
  options.is_guard = [guard = options_.guard](pid_t pid) { return guard && guard->pid() == pid; };
  options.on_clean = [this](LocalRank rank) {
    const auto found = workers_.find(rank.value);
    if (found == workers_.end()) return;
    if (options_.guard) options_.guard->remove_session(found->second->pid);
    finish_output(*found->second);
  };
  options.on_swept = [this] {
    if (options_.guard) options_.guard->no_workers_left();
    drain_ = Drain::output;
    advance();
  };
  return options;
}

void WorkerGroup::add_listener(WorkerGroupListener* listener) { listeners_.push_back(listener); }

// --- start

Result<void> WorkerGroup::start(std::vector<WorkerSpec> specs) {
  if (alive_ > 0) return Error(Errc::system, "workers of the last attempt still run");
  if (drain_ != Drain::told) give_up_drain();
  workers_.clear();
  exits_.clear();
  open_outputs_.clear();
  drain_ = Drain::no;
  if (std::exchange(hurried_, false) && hub_) hub_->set_console_patience(options_.output.console_patience);
  memory_.mark();
  if (options_.guard) options_.guard->look_after();
  token_ = options_.guard ? options_.guard->expect_workers() : make_job_token() + ".1";
  sweeper_.begin_attempt(token_);
  // Drained like any other attempt: whoever asked for it waits for that.
  if (left_some_behind_) return Error(Errc::system, "a worker of an earlier attempt is stuck in the kernel");
  if (auto started = start_all(std::move(specs)); !started) {
    end_now();
    exits_.clear();
    return name_limit(std::move(started).error());
  }
  for (auto& [rank, worker] : workers_) {
    for (auto* listener : listeners_) listener->on_start(worker->env, worker->pid);
  }
  return {};
}

// Whoever starts anew waits no longer for the last attempt: its helpers go now, and its output that is not out is lost.
void WorkerGroup::give_up_drain() {
  end_now();
  if (!hub_) return;
  for (auto& [rank, worker] : workers_) finish_output(*worker);
  if (hub_->wait_until_ended(kHurriedPatience)) return;
  log_warning("output of the last attempt's workers could not be written in time; the rest of it is lost");
  hub_.reset();
}

Result<void> WorkerGroup::start_all(std::vector<WorkerSpec> specs) {
  open_hub();
  AttemptFolder folder;
  if (options_.logs && !specs.empty()) {
    const StreamChoice& redirects = options_.output.redirects;
    if (options_.logs->temporary() && (redirects.all != 0 || !redirects.ranks.empty())) {
      options_.logs->keep();  // the only copy of what is redirected
    }
    const WorkerEnv& env = specs.front().env;
    auto made =
        options_.logs->begin_attempt(env.slice.restart_count, env.slice.round, static_cast<std::int64_t>(specs.size()));
    if (!made) return std::move(made).error();
    folder = *std::move(made);
    if (!options_.logs->temporary() && !folder.path.empty()) log_info("logs of this attempt: {}", folder.path);
  }
  auto stdio = AttemptStdio::make(options_, *hub_, folder);
  if (!stdio) return std::move(stdio).error();
  cgroup_.renew();
  for (WorkerSpec& spec : specs) {
    const LocalRank rank = spec.env.local_rank;
    auto started = start_one(std::move(spec), folder, *stdio);
    if (!started) return std::move(started).error().with_context(fmt::format("cannot start local rank {}", rank.value));
  }
  return {};
}

Result<void> WorkerGroup::start_one(WorkerSpec spec, const AttemptFolder& folder, const AttemptStdio& attempt) {
  auto worker = std::make_shared<Worker>(io_);
  const LocalRank rank = spec.env.local_rank;
  worker->env = spec.env;
  worker->error_file = folder.error_file(rank);
  set_environment(spec.process.environment, "TORCHELASTIC_ERROR_FILE", worker->error_file);
  const std::size_t equals = token_.find('=');
  set_environment(spec.process.environment, token_.substr(0, equals),
                  fmt::format("{}.{}", token_.substr(equals + 1), rank.value));
  if (options_.recorder_bytes > 0) give_recorder(*worker, spec.process);
  auto stdio = attempt.open(spec.env);
  if (!stdio) return std::move(stdio).error();
  spec.process.stdin_fd = stdio->stdin_fd;
  spec.process.stdout_fd = stdio->out.theirs.get();
  spec.process.stderr_fd = stdio->err.theirs.get();
  spec.process.cgroup_fd = cgroup_.fd();

  auto pid = spawn(spec.process, options_.inherited);
  if (!pid) return std::move(pid).error();
  if (options_.guard) options_.guard->add_session(*pid);
  auto child = ChildProcess::adopt(io_.get_executor(), *pid);
  if (!child) {
    if (options_.guard) options_.guard->remove_session(*pid);
    return std::move(child).error();
  }
  worker->pid = *pid;
  worker->child = *std::move(child);
  worker->stdio = *std::move(stdio);
  ++alive_;
  workers_[rank.value] = worker;
  sweeper_.add_worker(rank, *pid);
  if (auto pumped = start_pumps(worker->stdio); !pumped) return pumped;
  for (const int id : worker->stdio.hub_ids()) open_outputs_.emplace(id, rank.value);
  watch(worker);
  return {};
}

// A worker can do without: it says less then when it hangs.
void WorkerGroup::give_recorder(Worker& worker, SpawnSpec& process) {
  UniqueFd memory(::memfd_create("ddprun-recorder", MFD_CLOEXEC));
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(options_.recorder_bytes)) != 0) {
    const Error error = start_error(errno, memory ? "ftruncate" : "memfd_create");
    if (!std::exchange(said_no_recorder_, true)) {
      log_warning("no flight recorder for the workers (ddpctl flight will show nothing): {}", error.message());
    }
    return;
  }
  worker.recorder = std::move(memory);
  process.inherit_fds.push_back(worker.recorder.get());
  set_environment(process.environment, "DDPRUN_RECORDER_FD", std::to_string(worker.recorder.get()));
}

// --- signals

void WorkerGroup::send(Worker& worker, int signal, SignalScope scope) {
  // The leader is not reaped before take_exit(), so its id and its group's cannot be another's.
  if (scope == SignalScope::worker) {
    signal_process(worker.pid, signal);
  } else {
    signal_group(worker.pid, signal);
  }
  const bool asks_to_end = signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
  if (!asks_to_end) return;
  const auto stat = read_process_stat(options_.proc_root, worker.pid);
  if (stat && stat->state == 'T') signal_group(worker.pid, SIGCONT);  // stopped: it could not even take the signal
}

void WorkerGroup::ask_to_stop(LocalRank rank, int signal, SignalScope scope) {
  const auto found = workers_.find(rank.value);
  if (found == workers_.end() || found->second->ended) return;
  found->second->asked = true;
  found->second->asked_with = scope == SignalScope::worker ? signal : 0;
  send(*found->second, signal, scope);
}

void WorkerGroup::forward(int signal) {
  for (auto& [rank, worker] : workers_) {
    if (!worker->ended) send(*worker, signal, options_.signal_scope);
  }
}

void WorkerGroup::kill(LocalRank rank) {
  const auto found = workers_.find(rank.value);
  if (found == workers_.end() || found->second->ended || found->second->killed) return;
  Worker& worker = *found->second;
  worker.asked = worker.killed = true;
  // Its helpers follow when it is dead, but for those that clean up after it.
  signal_process(worker.pid, SIGKILL);
  worker.timer.expires_after(options_.kill_limit);
  worker.timer.async_wait(while_alive([this, weak = std::weak_ptr(found->second)](const boost::system::error_code& ec) {
    const auto stuck = weak.lock();
    if (!ec && stuck && !stuck->ended) leave_behind(*stuck);
  }));
}

// --- ends

void WorkerGroup::watch(const std::shared_ptr<Worker>& worker) {
  worker->child->when_ended(while_alive([this, weak = std::weak_ptr(worker)] {
    if (const auto alive = weak.lock()) look_at(alive);
  }));
}

void WorkerGroup::look_at(const std::shared_ptr<Worker>& worker) {
  if (worker->ended) return;
  siginfo_t info = {};
  if (::waitid(P_PID, static_cast<id_t>(worker->pid), &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid != 0) {
    judge_memory(*worker, info);
    const ExitStatus status = worker->child->reap();
    take_exit(*worker, status, false);
    return;
  }
  const auto stat = read_process_stat(options_.proc_root, worker->pid);
  if (!stat || !stat->is_dead()) {
    if (worker->child->is_watched()) watch(worker);  // it still runs
    return;
  }
  // Dead, but its tracer has not let it go.
  const TimePoint now = SteadyClock::now();
  if (!worker->dead_since) worker->dead_since = now;
  if (now >= *worker->dead_since + kTracedLimit) {
    log_warning("rank {} (pid {}) has ended, but the process that traces it does not let it go", worker->env.rank.value,
                worker->pid);
    worker->child->abandon();
    take_exit(*worker, ExitStatus::from_wait_status(stat->wait_status), false);
    return;
  }
  worker->timer.expires_after(kTracedLook);
  worker->timer.async_wait(while_alive([this, weak = std::weak_ptr(worker)](const boost::system::error_code& ec) {
    const auto alive = weak.lock();
    if (!ec && alive) look_at(alive);
  }));
}

// While its /proc entry is still there.
void WorkerGroup::judge_memory(Worker& worker, const siginfo_t& info) {
  if (worker.asked) return;
  ExitStatus status;
  if (info.si_code == CLD_EXITED) {
    status.code = info.si_status;
  } else {
    status.signal = info.si_status;
  }
  worker.memory = memory_.judge(worker.pid, status);
  if (!worker.memory.out_of_memory) return;
  const std::string& detail = worker.memory.detail;
  log_warning("rank {} was killed by the kernel because memory ran out{}{}", worker.env.rank.value,
              detail.empty() ? "" : ": ", detail);
}

void WorkerGroup::leave_behind(Worker& worker) {
  log_error("rank {} (pid {}) does not take SIGKILL (stuck in the kernel); it is left behind", worker.env.rank.value,
            worker.pid);
  left_some_behind_ = true;
  worker.child->abandon();
  ExitStatus status;
  status.signal = SIGKILL;
  take_exit(worker, status, true);
}

void WorkerGroup::take_exit(Worker& worker, const ExitStatus& status, bool left_behind) {
  worker.ended = true;
  worker.timer.cancel();
  worker.child.reset();
  WorkerExit exit;
  exit.at = SteadyClock::now();
  exit.time = std::chrono::system_clock::now();
  exit.status = status;
  exit.local_rank = worker.env.local_rank;
  exit.rank = worker.env.rank;
  exit.pid = worker.pid;
  exit.stopped_by_us = worker.asked;
  exit.left_behind = left_behind;
  exits_.push_back(exit);
  --alive_;
  const bool died_of_it = worker.asked_with != 0 && status.signal == worker.asked_with;
  sweeper_.worker_ended(exit.local_rank, worker.killed, died_of_it ? status.signal : 0);
  reap_orphans();
  for (auto* listener : listeners_) listener->on_exit(worker.env, exit);
  advance();
}

// Without the event loop, and without telling anybody.
void WorkerGroup::end_now() {
  for (auto& [rank, worker] : workers_) {
    if (!worker->ended) signal_process(worker->pid, SIGKILL);
  }
  const TimePoint end = SteadyClock::now() + kEndWorkers;
  for (auto& [rank, worker] : workers_) {
    if (worker->ended) continue;
    int wait_status = 0;
    pid_t reaped = 0;
    while ((reaped = ::waitpid(worker->pid, &wait_status, WNOHANG)) == 0 && SteadyClock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (reaped == 0) {
      log_error("rank {} (pid {}) does not take SIGKILL (stuck in the kernel); it is left behind",
                worker->env.rank.value, worker->pid);
      left_some_behind_ = true;
    }
    worker->child->abandon();
    worker->ended = true;
    --alive_;
    sweeper_.worker_ended(worker->env.local_rank, true, 0);
    if (options_.guard) options_.guard->remove_session(worker->pid);
  }
  sweeper_.end_now(kEndHelpers);
  if (options_.guard) options_.guard->no_workers_left();
}

// --- the end of an attempt

void WorkerGroup::drain() {
  if (drain_ != Drain::no) return;
  drain_ = Drain::wanted;
  asio::post(io_, while_alive([this] { advance(); }));
}

void WorkerGroup::hurry() {
  drain();
  if (!std::exchange(hurried_, true) && hub_) hub_->set_console_patience(kHurriedPatience);
  sweeper_.hurry();
}

void WorkerGroup::advance() {
  if (drain_ == Drain::wanted && alive_ == 0) {
    drain_ = Drain::helpers;
    sweeper_.all_ended();
  }
  // The hub has the limits here: of a pipe that somebody holds, and of a console that takes nothing.
  if (drain_ != Drain::output || !open_outputs_.empty()) return;
  drain_ = Drain::told;
  for (auto* listener : listeners_) listener->on_drained();
}

void WorkerGroup::finish_output(Worker& worker) {
  for (const int id : worker.stdio.hub_ids()) {
    if (hub_) hub_->finish(id, kSourceLimit);
  }
}

void WorkerGroup::output_ended(OutputHub::Ended done) {
  const auto found = open_outputs_.find(done.id);
  if (found == open_outputs_.end()) return;
  const auto worker = workers_.find(found->second);
  if (worker != workers_.end()) worker->second->stdio.take_recent(done.id, std::move(done.recent));
  open_outputs_.erase(found);
  advance();
}

const WorkerEvidence& WorkerGroup::evidence(LocalRank rank) {
  static const WorkerEvidence kNone;
  const auto found = workers_.find(rank.value);
  if (found == workers_.end()) return kNone;
  Worker& worker = *found->second;
  if (!worker.evidence_complete) worker.evidence = read_evidence(worker);
  worker.evidence_complete = drain_ == Drain::told;
  return worker.evidence;
}

WorkerEvidence WorkerGroup::read_evidence(Worker& worker) const {
  WorkerEvidence evidence;
  constexpr std::size_t kLines = 20;
  evidence.last_lines = worker.stdio.err.last_lines(kLines);
  if (evidence.last_lines.empty()) {
    evidence.last_lines = worker.stdio.out.last_lines(kLines);
    evidence.last_lines_are_stdout = !evidence.last_lines.empty();
  }
  if (!worker.error_file_json && !worker.error_file.empty()) {
    evidence.error_file_json = read_error_file(worker.error_file);
    if (worker.ended) worker.error_file_json = evidence.error_file_json;
  } else {
    evidence.error_file_json = worker.error_file_json.value_or("");
  }
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

int WorkerGroup::recorder_fd(LocalRank rank) const {
  const auto found = workers_.find(rank.value);
  return found == workers_.end() ? -1 : found->second->recorder.get();
}

std::vector<pid_t> WorkerGroup::pids() const {
  std::vector<pid_t> pids;
  for (const auto& [rank, worker] : workers_) {
    if (!worker->ended) pids.push_back(worker->pid);
  }
  return pids;
}

// --- children that are no workers

// Orphans that came to us as their subreaper (or as PID 1). Peeks first and waits for that one id: waiting for "any"
// would take a worker's status from its handle.
void WorkerGroup::reap_orphans() {
  if (options_.guard) options_.guard->look_after();
  while (true) {
    siginfo_t info = {};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT | WNOHANG) != 0 || info.si_pid == 0) return;
    const bool is_worker = std::any_of(workers_.begin(), workers_.end(), [&info](const auto& entry) {
      return !entry.second->ended && entry.second->pid == info.si_pid;
    });
    if (is_worker) return;  // take_exit() calls us again
    if (options_.guard && options_.guard->pid() == info.si_pid) {
      options_.guard->look_after();
    } else {
      ::waitpid(info.si_pid, nullptr, WNOHANG);
      sweeper_.child_ended();
    }
  }
}

void WorkerGroup::wait_for_child_signal() {
  child_signals_.async_wait(while_alive([this](const boost::system::error_code& ec, int) {
    if (ec) return;
    const auto workers = workers_;  // a listener may start others
    for (const auto& [rank, worker] : workers) {
      if (!worker->ended && !worker->child->is_watched()) look_at(worker);
    }
    reap_orphans();
    wait_for_child_signal();
  }));
}

void WorkerGroup::wait_for_window_signal() {
  window_signals_.async_wait(while_alive([this](const boost::system::error_code& ec, int) {
    if (ec) return;
    if (hub_) hub_->copy_window_size();
    // They have no controlling terminal that would send it.
    for (auto& [rank, worker] : workers_) {
      if (!worker->ended) send(*worker, SIGWINCH, SignalScope::group);
    }
    wait_for_window_signal();
  }));
}

}  // namespace ddprun::launcher
