#include "launcher/job/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/signal_names.h"
#include "common/system.h"
#include "launcher/agent/agent.h"
#include "launcher/job/event_log.h"
#include "launcher/job/flight.h"
#include "launcher/job/lost_port.h"
#include "launcher/job/own_console.h"
#include "launcher/job/report.h"
#include "launcher/job/report_file.h"
#include "launcher/options/cpu_budget.h"
#include "launcher/options/device.h"
#include "launcher/options/numa.h"
#include "launcher/options/preflight.h"
#include "launcher/options/program.h"
#include "launcher/options/signal_policy.h"
#include "launcher/options/worker_command.h"
#include "launcher/output/log_tree.h"
#include "launcher/process/guard.h"
#include "launcher/process/worker_group.h"
#include "launcher/process/worker_stdio.h"

namespace ddprun::launcher {
namespace {

namespace asio = boost::asio;

AgentOptions agent_options(const LaunchOptions& options, const LaunchContext& context) {
  AgentOptions out;
  out.endpoint_ports = context.endpoint_ports;
  out.serve_own_run_only = context.serve_own_run_only;
  out.run_id = options.rdzv.run_id;
  out.job = options.job;
  out.standalone = options.rdzv.local_job && options.rdzv.endpoint.port == 0;
  out.endpoint = options.rdzv.endpoint;
  out.is_host = options.rdzv.conf.is_host;
  out.nproc = options.node.nproc;
  out.role = options.node.role;
  out.node_rank = options.node.rank;
  out.local_addr = options.node.address;
  out.master_port = options.node.ports.master;
  out.first_port = options.node.ports.first;
  out.last_port = options.node.ports.last;
  out.serve_worker_store = !options.workers.bind_master_port;
  out.read_timeout = options.rdzv.conf.read_timeout;
  out.on_silence = options.rdzv.conf.keep_on_silence ? OnSilence::keep : OnSilence::stop;
  out.shutdown_timeout = options.supervision.shutdown_timeout;
  out.restart_backoff = options.supervision.restart_backoff;
  out.signal_groups = options.workers.signal_group;
  out.wait_for_helpers = options.workers.leftovers == Leftovers::wait;
  out.topology_key = options.node.topology_key;
  return out;
}

// Signals that would end us, or that we took while the job ran.
constexpr std::array kDeadlySignals{SIGTERM,   SIGINT,  SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM,
                                    SIGVTALRM, SIGPROF, SIGXCPU, SIGXFSZ, SIGPIPE, SIGPOLL, SIGPWR};

// What the job's end is, is settled now: a scheduler's SIGTERM that comes in the last moments changes neither the exit
// code nor the report. Blocked at first, because asio's set gives the default action back when it goes.
void block_deadly_signals(const LaunchOptions& options, bool blocked) {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : kDeadlySignals) ::sigaddset(&signals, number);
  for (const auto* list : {&options.supervision.signals_to_handle, &options.supervision.signals_to_forward}) {
    for (const int number : *list) ::sigaddset(&signals, number);
  }
  ::pthread_sigmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &signals, nullptr);
}

void ignore_deadly_signals(const LaunchOptions& options) {
  for (const int number : kDeadlySignals) ::signal(number, SIG_IGN);
  for (const auto* list : {&options.supervision.signals_to_handle, &options.supervision.signals_to_forward}) {
    for (const int number : *list) ::signal(number, SIG_IGN);
  }
}

// One launch: owns what outlives the agent.
class Launch {
 public:
  Launch(LaunchOptions options, LaunchContext context)
      : options_(std::move(options)), context_(std::move(context)), own_console_(options_.output) {
    report_.run_id = options_.rdzv.run_id.value;
    report_.entrypoint = options_.program.name;
    report_.host = short_host_name();
  }

  int run() {
    // Somebody looks on: a job on this node that goes well needs no words. Where we wait for others they are needed.
    const bool alone = options_.rdzv.local_job && options_.job.nnodes_max == 1;
    quiet_ = !options_.logs.level_given && alone && ::isatty(STDERR_FILENO) == 1;
    if (quiet_) log_set_level(LogLevel::warning);
    for (const auto& warning : options_.warnings) log_warning("{}", warning);
    for (const auto& note : options_.notes) log_info("{}", note);
    if (const std::string path = options_.logs.report_file; !path.empty()) {
      auto file = ReportFile::open(path, report_.host, options_.job.nnodes_max > 1);
      if (!file) return fail(exit_code::kUsage, "--report: " + file.error().message());
      report_file_ = *std::move(file);
    }
    auto program = find_program();
    if (!program) {
      const bool missing = program.error().code() == Errc::not_found;
      return fail(missing ? exit_code::kProgramNotFound : exit_code::kNotExecutable, program.error().message());
    }
    if (!program->warning.empty()) log_warning("{}", program->warning);
    report_.entrypoint = program->entrypoint;
    report_.python = program->python;
    if (auto code = check_host()) return *code;
    if (!options_.node.network_interface.empty() && options_.node.address.empty() && !options_.rdzv.local_job) {
      options_.node.address = interface_address(options_.node.network_interface).value_or("");
    }
    if (auto bound = bind_to_cpus(); !bound) return fail(exit_code::kUsage, bound.error().message());
    options_.program.local_rank_argument =
        choose_local_rank_argument(options_.program.local_rank_argument, program->script);
    const auto budget = cpu_budget();
    command_.emplace(options_, std::move(*program), environment_map(environ), budget.usable(),
                     budget.usable() < budget.affinity);
    if (command_->omp_threads() > 0) {
      const std::string whose =
          options_.node.nproc == 1 ? "the worker" : fmt::format("each of the {} workers", options_.node.nproc);
      log_info("OMP_NUM_THREADS={} for {}: {}; set it yourself to change that", command_->omp_threads(), whose,
               budget.text());
    }
    auto guard = Guard::start();
    if (!guard) return fail(exit_code::kFailure, guard.error().message());
    guard_ = *guard;
    const StreamChoice& redirects = options_.output.redirects;
    if (options_.logs.log_dir.empty() && (redirects.all != 0 || !redirects.ranks.empty())) {
      // Their only copy will be in the temporary directory.
      const std::string folder = process_environment()("TMPDIR").value_or("");
      const std::string parent = folder.empty() ? "/tmp" : folder;
      if (::access(parent.c_str(), W_OK | X_OK) != 0) {
        return fail(exit_code::kUsage, Error::from_errno(errno, "--redirects: no logs can be written to " + parent +
                                                                    " (set TMPDIR or give --log-dir)")
                                           .message());
      }
    }
    auto logs = LogTree::open(options_.logs.log_dir, options_.rdzv.run_id.value, guard_,
                              options_.job.nnodes_max > 1 ? report_.host : "");
    if (!logs) return fail(exit_code::kUsage, logs.error().message());
    logs_ = *logs;
    return supervise();
  }

 private:
  Result<Program> find_program() const {
    ProgramRequest request;
    request.program = options_.program.name;
    request.module = options_.program.module;
    request.no_python = options_.program.no_python;
    request.run_path = options_.program.run_path;
    request.own_folder = context_.own_folder;
    request.called_folder = context_.called_folder;
    return resolve_program(request, disk_lookup(), process_environment());
  }

  // The exit code if the job cannot start on this host.
  std::optional<int> check_host() {
    if (!options_.preflight) return std::nullopt;
    for (const auto& finding : judge(look_around(options_.logs.log_dir), options_, false)) {
      const std::string words = finding.subject + ": " + finding.text;
      if (finding.level == Finding::Level::error) return fail(finding.exit_code, words);
      log_warning("{}", words);
    }
    return std::nullopt;
  }

  Result<void> bind_to_cpus() {
    if (options_.workers.numa_binding.empty()) return {};
    NumaRequest request;
    request.mode = options_.workers.numa_binding;
    request.workers = options_.node.nproc;
    if (auto gpus = query_gpus()) {
      auto visible = process_environment()("CUDA_VISIBLE_DEVICES");
      if (!options_.workers.devices.empty()) visible = fmt::format("{}", fmt::join(options_.workers.devices, ","));
      for (const auto index : visible_gpus(*gpus, visible)) {
        request.gpu_nodes.push_back(numa_node_of((*gpus)[index].pci_bus_id));
      }
    }
    auto cpus = numa_binding(request);
    if (!cpus) return std::move(cpus).error();
    cpus_ = std::move(*cpus);
    for (std::size_t i = 0; i < cpus_.size(); ++i) {
      log_info("local rank {} runs on CPUs {} (--numa-binding={})", i, cpu_list(cpus_[i]),
               options_.workers.numa_binding);
    }
    return {};
  }

  std::unique_ptr<WorkerGroup> make_group(asio::io_context& io) {
    WorkerGroupOptions group;
    group.inherited = context_.inherited;
    group.output = options_.output;
    // A console that nobody reads must not hold up an end for longer than workers may.
    group.output.console_patience = std::clamp(options_.supervision.shutdown_timeout, std::chrono::milliseconds(1000),
                                               group.output.console_patience);
    group.stdin_policy = options_.workers.stdin_policy;
    group.signal_scope = options_.workers.signal_group ? SignalScope::group : SignalScope::worker;
    group.leftovers = options_.workers.leftovers;
    group.leftover_times.asked = options_.supervision.shutdown_timeout;
    group.guard = guard_;
    group.logs = logs_;
    group.recorder_bytes = kFlightBytes;
    auto workers = std::make_unique<WorkerGroup>(io, std::move(group));
    flight_.watch(workers.get(), options_.node.nproc);
    for (auto* observer : observers_) workers->add_listener(observer);
    return workers;
  }

  void make_observers() {
    observers_.push_back(&attempts_);
    observers_.push_back(&flight_);
    observers_.push_back(&own_console_);
    if (options_.supervision.events == Supervision::Events::none) return;
    EventLogOptions events;
    events.workers = options_.supervision.events == Supervision::Events::console;
    events.rendezvous = options_.supervision.events == Supervision::Events::dynamic_rendezvous;
    events.run_id = options_.rdzv.run_id.value;
    events.role = options_.node.role;
    events.backend = to_word(options_.job.backend);
    events.entrypoint = report_.entrypoint;
    events.host_name = host_name();
    events.write = [](const std::string& line) { internal::write_stderr(line + "\n"); };
    event_log_ = make_event_log(std::move(events));
    observers_.push_back(event_log_.get());
  }

  Result<std::vector<WorkerSpec>> make_specs(const RankSlice& slice) {
    const auto now = SteadyClock::now();
    const auto took =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - attempts_.ended_at().value_or(started_));
    for (auto* observer : observers_) observer->on_round(slice, took);
    std::vector<WorkerSpec> specs;
    for (std::int64_t i = 0; i < options_.node.nproc; ++i) {
      WorkerSpec spec;
      spec.env = command_->place(slice, LocalRank(i));
      auto environment = command_->environment(spec.env);
      if (!environment) return std::move(environment).error();
      spec.process.executable = command_->program().executable;
      spec.process.arguments = command_->arguments(LocalRank(i));
      spec.process.environment = environment_strings(*environment);
      spec.process.limits = options_.workers.limits;
      if (!cpus_.empty()) spec.process.cpus = cpus_[static_cast<std::size_t>(i)];
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  int supervise() {
    make_observers();
    auto outcome = run_job();
    if (options_.workers.bind_master_port && options_.rdzv.local_job &&
        lost_master_port(outcome, SteadyClock::now() - started_)) {
      log_warning("somebody else took MASTER_PORT before worker 0 could bind it: once more with another port");
      outcome = run_job();
    }
    return finish(std::move(outcome));
  }

  JobOutcome run_job() {
    started_ = SteadyClock::now();
    asio::io_context io(1);
    asio::signal_set signals(io);
    listen(signals);
    block_deadly_signals(options_, false);
    AgentHooks hooks;
    hooks.make_group = [this, &io] { return make_group(io); };
    hooks.make_specs = [this](const RankSlice& slice) { return make_specs(slice); };
    hooks.flight_record = [this](std::size_t max_bytes) { return flight_.pack(max_bytes); };
    hooks.workers_die_at = [this](std::optional<TimePoint> when) { guard_->kill_workers_at(when); };
    Agent agent(io, agent_options(options_, context_), context_.services, std::move(hooks));
    std::optional<JobOutcome> outcome;
    std::exception_ptr failure;
    asio::co_spawn(io, agent.run(), [&](std::exception_ptr thrown, JobOutcome result) {
      block_deadly_signals(options_, true);
      failure = thrown;
      outcome = std::move(result);
      signals.cancel();
      io.stop();
    });
    asio::co_spawn(io, pass_signals_on(signals, agent), [&failure](std::exception_ptr thrown) {
      if (thrown) failure = thrown;
    });
    io.run();
    flight_.watch(nullptr, 0);                     // the agent's group is gone
    if (failure) std::rethrow_exception(failure);  // ours to mend: main() says so
    return std::move(*outcome);
  }

  // What was ignored when we started stays ignored (nohup).
  void listen(asio::signal_set& signals) {
    for (const auto* list : {&options_.supervision.signals_to_handle, &options_.supervision.signals_to_forward}) {
      for (const int number : *list) {
        if (context_.inherited.ignored(number)) continue;
        boost::system::error_code error;
        signals.add(number, error);
        if (error) log_warning("{} cannot be caught: {}", signal_name(number), error.message());
      }
    }
  }

  asio::awaitable<void> pass_signals_on(asio::signal_set& signals, Agent& agent) {
    SignalPolicy policy(options_.supervision.signals_to_handle, options_.supervision.signals_to_forward);
    while (true) {
      const auto [error, number] = co_await signals.async_wait(asio::as_tuple(asio::use_awaitable));
      if (error) co_return;
      const std::string name = signal_name(number);
      switch (policy.on(number, SteadyClock::now())) {
        case SignalPolicy::Action::stop:
          log_warning("{}: {}; workers that run get it and have {} s{}", name,
                      options_.job.nnodes_max > 1 ? "this node leaves the job" : "the job ends",
                      options_.supervision.shutdown_timeout.count() / 1000.0,
                      SignalPolicy::is_impatient(number) ? " (once more: they are killed at once)" : "");
          agent.stop(number);
          break;
        case SignalPolicy::Action::stop_now:
          log_warning("{} while the job ends: killing the workers now", name);
          agent.stop(number);
          break;
        case SignalPolicy::Action::forward:
          log_info("{}: passed to the workers", name);
          agent.forward(number);
          break;
        case SignalPolicy::Action::echo:
          log_warning("{} so soon after the first signal counts as its echo: once more kills the workers now", name);
          break;
        case SignalPolicy::Action::ignore:
          log_info("{} again: the job is ending already", name);
          break;
      }
    }
  }

  int finish(JobOutcome outcome) {
    for (auto* observer : observers_) observer->on_end(outcome);
    report_.attempts = attempts_.attempts();
    report_.success = outcome.kind == JobOutcome::Kind::success;
    report_.exit_code = outcome.exit_code;
    report_.reason = std::move(outcome.reason);
    report_.root_cause = std::move(outcome.root_cause);
    report_.failures = std::move(outcome.failures);
    report_.notes = std::move(outcome.notes);
    report_.root_is_above = report_.root_cause && own_console_.shows(*report_.root_cause);
    report_.collectives = flight_.verdict();
    if (logs_ && !logs_->temporary()) report_.log_folder = logs_->root();
    return last_word();
  }

  int fail(int code, const std::string& reason) {
    report_.exit_code = code;
    report_.reason = reason;
    return last_word();
  }

  int last_word() {
    ignore_deadly_signals(options_);
    if (options_.supervision.torchrun_exit_codes && report_.exit_code != exit_code::kOk &&
        report_.exit_code != exit_code::kUsage) {
      report_.exit_code = exit_code::kFailure;
    }
    const std::string text = report_.success ? earlier_attempts(report_) : to_text(report_);
    // Started for a list of hosts (launcher/hosts): the last word of all is said on the starting host, which needs
    // ours for it; the whole story is told by the host that it happened on.
    const bool handed_over = hand_over_report(to_json(report_));
    const bool ours = report_.root_cause && report_.root_cause->host == report_.host;
    if (!text.empty() && (!handed_over || ours)) say(text);
    if (quiet_ && report_.success && !report_.log_folder.empty()) {
      say("ddprun: logs are in " + printable(report_.log_folder));
    }
    if (report_file_) {
      auto written = report_file_->write(to_json(report_));
      if (!written) {
        log_error("--report: {}", written.error().message());
      } else if (*written != options_.logs.report_file) {
        log_info("--report: another node has written {}, so that of this node is {}", options_.logs.report_file,
                 *written);
      }
    }
    if (!options_.logs.own_error_file.empty() && report_.root_cause) {
      auto written = write_file(options_.logs.own_error_file, to_error_file(*report_.root_cause));
      if (!written) log_error("TORCHELASTIC_ERROR_FILE: {}", written.error().message());
    }
    return report_.exit_code;
  }

  LaunchOptions options_;
  LaunchContext context_;
  JobReport report_;
  std::optional<ReportFile> report_file_;
  OwnConsole own_console_;
  std::optional<WorkerCommand> command_;
  std::vector<std::vector<int>> cpus_;  // of each worker; empty = not bound
  std::shared_ptr<Guard> guard_;
  std::shared_ptr<LogTree> logs_;
  AttemptLog attempts_;
  FlightObserver flight_;
  std::unique_ptr<JobObserver> event_log_;
  std::vector<JobObserver*> observers_;
  TimePoint started_;
  bool quiet_ = false;  // on a terminal: no words for a job that goes well
};

}  // namespace

int launch(LaunchOptions options, LaunchContext context) {
  return Launch(std::move(options), std::move(context)).run();
}

}  // namespace ddprun::launcher
