#include <fmt/format.h>
#include <signal.h>

#include "common/exit_code.h"
#include "common/log.h"
#include "launcher/agent_impl.h"
#include "launcher/guard.h"

// One round of a node: start the workers, watch them, hear the rendezvous, stop.
namespace ddprun::launcher {
namespace {

// For workers when the lease is over, and how much later somebody else kills them should we be stopped ourselves. Both
// are part of Membership::kLostMargin.
constexpr milliseconds kSilencePatience{3'000};
constexpr milliseconds kGuardDelay{500};

}  // namespace

asio::awaitable<Verdict> Agent::Impl::run_round(rdzv::Assignment assignment) {
  current = std::make_unique<Current>(assignment, options.nproc, options.shutdown_timeout);
  Current& c = *current;
  auto served = serve_store(assignment);
  client->assigned(assignment);
  if (!served) {
    start_failed(c, served.error());
  } else {
    const milliseconds wait =
        spawn_number > 0 ? backoff_before(assignment.restart_count, options.restart_backoff) : milliseconds(0);
    const TimePoint start_at = SteadyClock::now() + wait;
    if (wait.count() > 0) log_info("waiting before the next attempt wait_ms={}", wait.count());
    while (!c.verdict && SteadyClock::now() < start_at) {
      auto event = co_await next(start_at);
      if (event) handle(c, *event);
    }
    if (!c.verdict) start_workers(c);
  }
  if (!c.started) c.stopped = true;
  while (!(c.stopped && c.verdict)) {
    const TimePoint now = SteadyClock::now();
    TimePoint until = now + kLook;
    if (c.policy.deadline()) until = std::min(until, *c.policy.deadline());
    if (c.kill_at) until = std::min(until, *c.kill_at);
    auto event = co_await next(until);
    if (event) {
      handle(c, *event);
    } else {
      look_around(c);
    }
    if (c.kill_at && SteadyClock::now() >= *c.kill_at) {
      c.kill_at.reset();
      if (!c.stopped) tasks.spawn(kill_group());
    }
  }
  co_await tasks.join();
  Verdict verdict = std::move(*c.verdict);
  if (auto* outcome = std::get_if<JobOutcome>(&verdict)) add_own_evidence(c, *outcome);
  current.reset();
  // What the workers of this round said last: an exit that nobody needs any more.
  std::deque<Event> kept;
  for (Event& event : events) {
    if (!std::holds_alternative<WorkerExit>(event) && !std::holds_alternative<Stopped>(event) &&
        !std::holds_alternative<LeaseExpired>(event)) {
      kept.push_back(std::move(event));
    }
  }
  events = std::move(kept);
  co_return verdict;
}

Result<void> Agent::Impl::serve_store(const rdzv::Assignment& assignment) {
  if (is_static()) return Result<void>();
  if (assignment.group_rank.value != 0) {
    store.reset();
    listener.reset();
    return Result<void>();
  }
  if (!options.serve_worker_store) {
    listener.reset();
    return Result<void>();
  }
  if (store) {  // the kept port
    store->serve();
    return Result<void>();
  }
  auto made = services.make_worker_store(io, std::move(*listener));
  listener.reset();
  if (!made) return std::move(made).error();
  store = std::move(*made);
  return Result<void>();
}

void Agent::Impl::start_workers(Current& c) {
  const rdzv::Assignment& a = c.assignment;
  RoundContext context;
  context.round = a.round;
  context.group_rank = a.group_rank;
  context.group_world_size = a.group_world_size;
  context.first_rank = a.first_rank;
  context.world_size = a.world_size;
  context.local_world_size = options.nproc;
  context.role = options.role;
  context.first_role_rank = a.first_role_rank;
  context.role_world_size = a.role_world_size;
  context.master = a.master;
  context.restart_count = a.restart_count;
  context.max_restarts = options.max_restarts;
  context.spawn_number = spawn_number++;
  context.run_id = options.run_id;
  auto specs = hooks.make_specs(context);
  if (!specs) return start_failed(c, specs.error());
  if (!workers) workers = hooks.make_group();
  group = &workers->group();
  auto started = workers->start(std::move(*specs));
  if (!started) return start_failed(c, started.error());
  c.started = true;
  c.started_at = SteadyClock::now();
  tell_lease();
  log_info("started {} {} ranks={}..{} of {}", options.nproc, options.nproc == 1 ? "worker" : "workers",
           a.first_rank.value, a.first_rank.value + options.nproc - 1, a.world_size);
  tasks.spawn(pump_exits());
}

asio::awaitable<void> Agent::Impl::pump_exits() {
  while (true) {
    auto exit = co_await workers->next_exit();
    if (!exit) co_return;
    push(std::move(*exit));
  }
}

void Agent::Impl::start_failed(Current& c, const Error& error) {
  FailureRecord record = blank_record(c);
  record.message = fmt::format("{} cannot start its workers: {}", self_host, error.message());
  record.exit_code = error.code() == Errc::not_found        ? exit_code::kProgramNotFound
                     : error.code() == Errc::not_executable ? exit_code::kNotExecutable
                     : error.code() == Errc::unsupported    ? exit_code::kPermanent
                                                            : exit_code::kFailure;
  report_failure(c, std::move(record), record.exit_code != exit_code::kFailure);
}

FailureRecord Agent::Impl::blank_record(const Current& c) const {
  FailureRecord record;
  record.rank = c.assignment.first_rank;
  record.group_rank = c.assignment.group_rank;
  record.round = c.assignment.round;
  record.restart_count = c.assignment.restart_count;
  record.host = self_host;
  return record;
}

void Agent::Impl::report_failure(Current& c, FailureRecord record, bool permanent) {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  record.unix_time = std::chrono::duration_cast<milliseconds>(wall);  // the rendezvous stamps it with its own
  c.failure = std::move(record);
  c.permanent = permanent;
  c.failed_at = SteadyClock::now();
  tell_failure(c);
}

void Agent::Impl::tell_failure(const Current& c) {
  rdzv::Failure failure;
  failure.age = std::chrono::duration_cast<milliseconds>(SteadyClock::now() - c.failed_at);
  failure.permanent = c.permanent;
  failure.quick = c.started && c.failed_at - c.started_at <= options.crash_loop_window;
  failure.record = *c.failure;
  client->failed(std::move(failure));
}

void Agent::Impl::add_evidence(FailureRecord& record) const {
  if (!group || !record.message.empty()) return;
  WorkerEvidence evidence = group->evidence(record.local_rank);
  record.last_lines = std::move(evidence.last_lines);
  record.error_file_json = std::move(evidence.error_file_json);
  record.log_paths = std::move(evidence.log_paths);
  record.out_of_memory = evidence.out_of_memory;
}

void Agent::Impl::add_own_evidence(const Current& c, JobOutcome& outcome) const {
  if (!c.failure) return;
  const auto complete = [&](FailureRecord& record) {
    if (record.round != c.failure->round || record.rank != c.failure->rank) return;
    const auto time = record.unix_time;
    record = *c.failure;
    record.unix_time = time;
  };
  for (FailureRecord& record : outcome.failures) complete(record);
  if (outcome.root_cause) complete(*outcome.root_cause);
}

void Agent::Impl::begin_stop(Current& c, int signal, milliseconds patience) {
  if (!c.started || c.stopped) return;
  if (c.stopping) return;
  c.stopping = true;
  tasks.spawn(stop_group(signal, patience));
}

asio::awaitable<void> Agent::Impl::stop_group(int signal, milliseconds patience) {
  co_await workers->stop(signal, patience);
  push(Stopped());
}

void Agent::Impl::handle(Current& c, Event& event) {
  if (auto* exit = std::get_if<WorkerExit>(&event)) {
    on_exit(c, *exit);
  } else if (std::holds_alternative<Stopped>(event)) {
    on_stopped(c);
  } else if (std::holds_alternative<LeaseExpired>(event)) {
    on_lease_expired(c);
  } else if (auto* request = std::get_if<StopRequest>(&event)) {
    on_stop_request(c, request->signal);
  } else if (auto* hopeless = std::get_if<Hopeless>(&event)) {
    log_error("the rendezvous cannot be talked to any more: {}. Workers run on", hopeless->why);
  } else if (auto* message = std::get_if<rdzv::ServerMessage>(&event)) {
    on_message(c, *message);
  }
}

void Agent::Impl::on_exit(Current& c, const WorkerExit& exit) {
  // Were we stopped ourselves, the guard has killed them because the lease was over: that is no failure of theirs.
  const bool late = c.guard_fired || (c.die_at && boot_time() >= *c.die_at);
  if (late && exit.status.signal == SIGKILL && !c.stopping && !c.verdict && !c.done) {
    log_warning("this process did not run for longer than the lease, so its guard killed the workers: joining again");
    c.verdict = Again();
    begin_stop(c, SIGTERM, milliseconds(0));
  }
  if (exit.stopped_by_us || c.stopping) return;
  decide(c, c.policy.on_exit(exit.local_rank, exit.status.code, exit.status.signal, exit.at), exit.at);
}

void Agent::Impl::decide(Current& c, const RestartPolicy::Decision& decision, TimePoint at) {
  switch (decision.verdict) {
    case RestartPolicy::Verdict::carry_on:
      return;
    case RestartPolicy::Verdict::finished:
    case RestartPolicy::Verdict::resumable:
      c.done = decision.verdict == RestartPolicy::Verdict::finished ? rdzv::DoneResult::success
                                                                    : rdzv::DoneResult::resume_me;
      c.done_at = SteadyClock::now();
      client->done(*c.done);
      begin_stop(c, SIGTERM, options.shutdown_timeout);  // drains their output
      return;
    case RestartPolicy::Verdict::failed:
      break;
  }
  FailureRecord record = blank_record(c);
  record.local_rank = decision.worker;
  record.rank = Rank(c.assignment.first_rank.value + decision.worker.value);
  for (const WorkerExit& exit : group->exits()) {
    if (exit.local_rank != decision.worker) continue;
    record.pid = exit.pid;
    record.exit_code = exit.status.code;
    record.signal = exit.status.signal;
  }
  add_evidence(record);
  log_warning("{} pid={}: stopping the workers of this node", rdzv::describe(record), record.pid);
  report_failure(c, std::move(record), decision.permanent);
  c.failed_at = std::min(c.failed_at, at);
  begin_stop(c, SIGTERM, options.shutdown_timeout);
}

void Agent::Impl::on_stopped(Current& c) {
  c.stopped = true;
  tell_lease();
  if (c.failure) {
    FailureRecord complete = *c.failure;
    add_evidence(complete);
    c.failure = std::move(complete);
    if (!c.verdict) tell_failure(c);
  }
  if (auto* wish = c.operators_wish && c.verdict ? std::get_if<JobOutcome>(&*c.verdict) : nullptr) {
    after_operators_wish(*wish);
  } else if (c.signal != 0) {
    // A failure that came first keeps its reason, unless the workers saved and ended with 75.
    JobOutcome ended = after_signal(c.signal);
    const bool has_reason = c.verdict && std::holds_alternative<JobOutcome>(*c.verdict);
    if (!has_reason || ended.kind == JobOutcome::Kind::resume_me) c.verdict = std::move(ended);
  }
}

bool Agent::Impl::all_saved() const {
  const auto exits = group ? group->exits() : std::vector<WorkerExit>();
  bool saved = static_cast<std::int64_t>(exits.size()) == options.nproc;
  for (const WorkerExit& exit : exits) {
    saved = saved && exit.status.signal == 0 && exit.status.code == exit_code::kResumeMe;
  }
  return saved;
}

void Agent::Impl::after_operators_wish(JobOutcome& outcome) const {
  if (all_saved())
    outcome.reason += "; its workers saved their state and ended with 75: started again, the job goes on from there";
}

JobOutcome Agent::Impl::after_signal(int signal) const {
  if (!all_saved()) return signalled(signal);
  rdzv::Finished finished;
  finished.result = rdzv::DoneResult::resume_me;
  return ended_well(finished, "");
}

void Agent::Impl::on_lease_expired(Current& c) {
  if (host) return;  // the rendezvous is in this process: we did not run, so nor did it
  if (options.on_silence == OnSilence::keep) {
    log_warning("the rendezvous is silent: workers run on (--rdzv-conf on_silence=keep)");
    return;
  }
  const milliseconds patience = std::min(options.shutdown_timeout, kSilencePatience);
  if (c.started && c.stopping && !c.stopped) {
    log_warning("the rendezvous is silent, this node may be cut off: its workers must end within {} ms",
                patience.count());
    c.kill_at = SteadyClock::now() + patience;
  }
  if (c.verdict || c.done || c.signal != 0) return;
  log_warning("the rendezvous is silent, this node may be cut off: stopping its workers, then joining again");
  c.verdict = Again();
  begin_stop(c, SIGTERM, patience);
}

// If we are stopped (SIGSTOP, a debugger, a suspended machine) nobody looks at the lease here. Where the rendezvous is
// in this process it is stopped as well, and no other world can form.
void Agent::Impl::tell_lease() {
  if (!hooks.workers_die_at || host || options.on_silence == OnSilence::keep) return;
  std::optional<TimePoint> when;
  if (current && current->started && !current->stopped) {
    const milliseconds now = boot_time();  // the guard's clock: it goes on in a suspended machine
    if (current->die_at && now >= *current->die_at) current->guard_fired = true;
    when = client->lease_end() + kSilencePatience + kGuardDelay;
    current->die_at = now + std::chrono::ceil<milliseconds>(*when - SteadyClock::now());
  }
  hooks.workers_die_at(when);
}

void Agent::Impl::on_stop_request(Current& c, int signal) {
  if (c.signal != 0 || (c.stopping && !c.done && std::holds_alternative<JobOutcome>(c.verdict.value_or(Again())))) {
    if (c.started && !c.stopped) tasks.spawn(kill_group());
    if (c.signal == 0) c.signal = signal;
    return;
  }
  c.signal = signal;
  client->leave(rdzv::LeaveWhy::signalled, fmt::format("it was stopped with signal {}", signal));
  if (!c.started || c.stopped) {
    c.verdict = after_signal(signal);
    return;
  }
  if (c.stopping) {
    group->forward(signal);  // they were being stopped for another reason
  } else {
    begin_stop(c, signal, options.shutdown_timeout);
  }
}

void Agent::Impl::on_message(Current& c, rdzv::ServerMessage& message) {
  if (auto* restart = std::get_if<rdzv::Restart>(&message)) {
    if (restart->round != c.assignment.round || c.signal != 0 || c.verdict) return;
    log_info("round {} ends: {}", restart->round.value, restart->reason);
    c.verdict = Again();
    begin_stop(c, SIGTERM, options.shutdown_timeout);
  } else if (auto* finished = std::get_if<rdzv::Finished>(&message)) {
    if (c.signal != 0) return;
    c.verdict = ended_well(*finished, "on all nodes");
    begin_stop(c, SIGTERM, options.shutdown_timeout);
  } else if (auto* shutdown = std::get_if<rdzv::Shutdown>(&message)) {
    if (c.signal != 0) return;
    on_shutdown(c, std::move(*shutdown));
  } else if (auto* refused = std::get_if<rdzv::Refused>(&message)) {
    log_error("the rendezvous refused: {}", refused->reason);
    if (c.verdict) return;
    c.verdict =
        outcome_of(JobOutcome::Kind::unavailable, exit_code::kUsage, "the rendezvous refused: " + refused->reason);
    begin_stop(c, SIGTERM, options.shutdown_timeout);
  } else {
    other(message);
  }
}

void Agent::Impl::on_shutdown(Current& c, rdzv::Shutdown shutdown) {
  const bool operators_wish =
      shutdown.cause == rdzv::ShutdownCause::stopped || shutdown.cause == rdzv::ShutdownCause::drained;
  if (!c.failure) {
    log_warning("{}: stopping the workers of this node", shutdown.cause == rdzv::ShutdownCause::worker_failure
                                                             ? "the job failed: " + shutdown.reason
                                                             : shutdown.reason);
  }
  const std::string reason = shutdown.reason;
  c.verdict = shut_down(std::move(shutdown));
  if (operators_wish) {
    c.signal = SIGTERM;
    c.operators_wish = true;
    if (!c.started || c.stopped) return;
  }
  begin_stop(c, SIGTERM, options.shutdown_timeout);
}

void Agent::Impl::look_around(Current& c) {
  const TimePoint now = SteadyClock::now();
  if (c.policy.deadline() && !c.stopping && now >= *c.policy.deadline()) {
    decide(c, c.policy.tick(now), now);
    return;
  }
  const auto since = client->disconnected_since();
  if (!since || c.verdict || c.signal != 0) return;
  if (c.done) {
    if (now < std::max(*since, c.done_at) + options.times.close_timeout) return;
    log_warning("the rendezvous is gone for {} ms; the workers of this node are done, so it ends",
                options.times.close_timeout.count());
    rdzv::Finished finished;
    finished.result = *c.done;
    c.verdict = ended_well(finished, "on this node");
    return;
  }
  if (now < *since + options.times.join_timeout) return;
  if (c.failure) {
    JobOutcome outcome;
    outcome.kind = JobOutcome::Kind::worker_failure;
    outcome.root_cause = c.failure;
    outcome.failures.push_back(*c.failure);
    outcome.exit_code = exit_code_for(*c.failure);
    c.verdict = std::move(outcome);
  } else if (client->server_is_embedded()) {
    log_error("the node that hosted the rendezvous is lost, and nobody serves {}: stopping the workers",
              endpoint.to_string());
    c.verdict = unreachable();
    begin_stop(c, SIGTERM, options.shutdown_timeout);
  }
}

}  // namespace ddprun::launcher
