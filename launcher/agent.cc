#include "launcher/agent.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <exception>
#include <utility>
#include <variant>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/rdzv_protocol.h"
#include "common/task_group.h"
#include "common/tcp.h"
#include "launcher/rendezvous_client.h"
#include "launcher/restart_policy.h"

namespace ddprun::launcher {

namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr milliseconds kLook{500};               // how often states without an event are looked at
constexpr milliseconds kSilencePatience{3'000};  // for workers when the lease is over; part of kLostMargin
constexpr milliseconds kFlush{1'000};
constexpr milliseconds kDrain{10'000};
constexpr milliseconds kRefusedRetry{1'000};

std::string random_id() {
  std::array<unsigned char, 16> bytes{};
  CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "getrandom failed");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

bool is_loopback_name(const std::string& host) { return host == "localhost" || is_loopback(host); }

// What happens when the workers of this round have been stopped.
struct Again {};
using Verdict = std::variant<Again, JobOutcome>;

struct Stopped {};
struct LeaseExpired {};
struct NobodyThere {};
struct StopRequest {
  int signal = 0;
};
struct Hopeless {
  std::string why;
};
using Event = std::variant<rdzv::ServerMessage, WorkerExit, Stopped, LeaseExpired, NobodyThere, StopRequest, Hopeless>;

JobOutcome outcome_of(JobOutcome::Kind kind, int code, std::string reason) {
  JobOutcome outcome;
  outcome.kind = kind;
  outcome.exit_code = code;
  outcome.reason = std::move(reason);
  return outcome;
}

}  // namespace

class Agent::Impl : public std::enable_shared_from_this<Agent::Impl> {
 public:
  Impl(asio::io_context& context, AgentOptions o, Services s, AgentHooks h)
      : io(context),
        options(std::move(o)),
        services(std::move(s)),
        hooks(std::move(h)),
        wake(context),
        tasks(context.get_executor()) {}

  asio::awaitable<JobOutcome> run() {
    auto prepared = co_await prepare();
    if (!prepared) {
      co_return outcome_of(JobOutcome::Kind::cannot_start, exit_code::kFailure, prepared.error().message());
    }
    start_client();
    JobOutcome outcome = co_await live();
    co_await client->close(kFlush);
    const bool all_know = outcome.kind != JobOutcome::Kind::signalled && outcome.kind != JobOutcome::Kind::cannot_start;
    if (host && all_know) co_await host->drain(options.run_id, std::min(options.times.close_timeout, kDrain));
    store.reset();
    host.reset();
    group.reset();
    client.reset();
    co_return outcome;
  }

  void stop(int signal) {
    StopRequest request;
    request.signal = signal;
    push(request);
  }

  void forward(int signal) {
    if (group) group->signal_all(signal);
  }

  std::string endpoint_text() const { return endpoint.to_string(); }

 private:
  // --- events

  void push(Event event) {
    events.push_back(std::move(event));
    wake.cancel();
  }

  asio::awaitable<std::optional<Event>> next(TimePoint until) {
    while (events.empty()) {
      if (SteadyClock::now() >= until) co_return std::nullopt;
      wake.expires_at(until);
      co_await wake.async_wait(kAsTuple);
    }
    std::optional<Event> event = std::move(events.front());
    events.pop_front();
    co_return event;
  }

  // --- who hosts

  asio::awaitable<Result<void>> prepare() {
    endpoint = options.endpoint;
    if (endpoint.host == "localhost") endpoint.host = "127.0.0.1";
    if (options.standalone) {
      endpoint.host = "127.0.0.1";
      auto hosted = host_on(endpoint.host, options.endpoint.port);
      co_return hosted;
    }
    if (options.backend == RendezvousBackend::static_ranks) {
      if (options.node_rank.value_or(0) != 0) co_return Result<void>();
      // The name may be a service's that is no address of this host, so any address will do.
      auto hosted = host_on(is_loopback_name(endpoint.host) ? endpoint.host : "", endpoint.port);
      if (!hosted) co_return std::move(hosted).error().with_context("--node-rank=0 serves " + endpoint.to_string());
      co_return Result<void>();
    }
    if (options.is_host.value_or(false)) {
      auto hosted = host_on(is_loopback_name(endpoint.host) ? endpoint.host : "", endpoint.port);
      if (!hosted) co_return std::move(hosted).error().with_context("--rdzv-conf is_host=1");
      co_return Result<void>();
    }
    if (!options.is_host.has_value()) co_await try_to_host();
    co_return Result<void>();
  }

  // Whoever can bind the endpoint hosts it; names are not compared.
  asio::awaitable<void> try_to_host() {
    boost::system::error_code ec;
    asio::ip::make_address(endpoint.host, ec);
    if (!ec) {
      auto hosted = host_on(endpoint.host, endpoint.port);
      if (!hosted) log_debug("not the host of {}: {}", endpoint.to_string(), hosted.error().message());
      co_return;
    }
    asio::ip::tcp::resolver resolver(io);
    std::string name = endpoint.host;
    std::string service = std::to_string(endpoint.port);
    const auto [error, found] = co_await resolver.async_resolve(name, service, kAsTuple);
    if (error) co_return;  // the client tells
    for (const auto& entry : found) {
      ListenOptions probe;
      probe.address = entry.endpoint().address().to_string();
      auto bound = tcp_listen(probe);  // any port: is this address ours?
      if (!bound) continue;
      bound->fd.reset();
      // Other hosts may know the name by another address of ours (127.0.1.1 in Debian's hosts file).
      auto hosted = host_on("", endpoint.port);
      if (!hosted) log_debug("not the host of {}: {}", endpoint.to_string(), hosted.error().message());
      co_return;
    }
  }

  // `address` "": any. On success our client connects to ourselves.
  Result<void> host_on(const std::string& address, std::uint16_t port) {
    ListenOptions listen;
    listen.address = address == "localhost" ? "127.0.0.1" : address;
    listen.port = port;
    listen.first_port = options.first_port;
    listen.last_port = options.last_port;
    auto bound = tcp_listen(listen);
    if (!bound) return std::move(bound).error();
    auto made = services.host_rendezvous(io, std::move(*bound));
    if (!made) return std::move(made).error();
    host = std::move(*made);
    endpoint.port = host->port();
    client_endpoint = endpoint;
    if (address.empty()) client_endpoint->host = "127.0.0.1";
    log_info("hosting the rendezvous endpoint={}", endpoint.to_string());
    return Result<void>();
  }

  void start_client() {
    ClientOptions client_options;
    client_options.endpoint = client_endpoint.value_or(endpoint);
    client_options.read_timeout = options.times.read_timeout;
    rdzv::NodeInfo& node = client_options.node;
    node.run_id = options.run_id;
    node.node_id = NodeId(random_id());
    node.host = host_name();
    node.address = options.local_addr;
    node.role = options.role;
    node.topology_key = options.topology_key;
    node.nnodes_min = options.nnodes_min;
    node.nnodes_max = options.nnodes_max;
    node.nproc = options.nproc;
    node.node_rank = options.node_rank;
    if (options.backend == RendezvousBackend::static_ranks) {
      node.backend = rdzv::Backend::static_ranks;
      node.node_rank = options.node_rank.value_or(0);
    }
    node.max_restarts = options.max_restarts;
    node.join_timeout = options.times.join_timeout;
    node.last_call_timeout = options.times.last_call_timeout;
    node.close_timeout = options.times.close_timeout;
    node.keep_alive_interval = options.times.keep_alive_interval;
    node.keep_alive_attempts = options.times.keep_alive_max_attempt;
    node.crash_loop_limit = options.crash_loop_limit;
    node.crash_loop_window = options.crash_loop_window;
    self_host = node.host;
    ClientEvents client_events;
    client_events.on_message = [this](rdzv::ServerMessage message) { push(std::move(message)); };
    client_events.on_lease_expired = [this] { push(LeaseExpired()); };
    client_events.on_nobody_there = [this] { push(NobodyThere()); };
    client_events.on_hopeless = [this](Error error) {
      Hopeless hopeless;
      hopeless.why = error.message();
      push(std::move(hopeless));
    };
    client = std::make_unique<RendezvousClient>(io, std::move(client_options), std::move(client_events));
    client->start();
  }

  // --- rounds

  asio::awaitable<JobOutcome> live() {
    Round last_round;
    while (true) {
      auto joined = co_await join(last_round);
      if (auto* end = std::get_if<JobOutcome>(&joined)) co_return std::move(*end);
      const rdzv::Assignment assignment = std::get<rdzv::Assignment>(joined);
      last_round = assignment.round;
      Verdict verdict = co_await run_round(assignment);
      if (auto* end = std::get_if<JobOutcome>(&verdict)) co_return std::move(*end);
    }
  }

  bool loopback_job() const { return options.standalone || is_loopback_name(options.endpoint.host); }
  bool is_static() const { return options.backend == RendezvousBackend::static_ranks; }

  // The listener of the round's worker store, bound before Join so that its port is sure.
  Result<std::uint16_t> bind_store() {
    if (is_static()) return std::uint16_t{0};
    if (store && options.master_port) return store->port();  // the same port is kept over restarts
    store.reset();
    ListenOptions listen;
    if (loopback_job()) listen.address = endpoint.host;
    listen.port = options.master_port.value_or(0);
    listen.first_port = options.first_port;
    listen.last_port = options.last_port;
    auto bound = tcp_listen(listen);
    if (!bound && options.master_port && options.nnodes_max > 1) {
      log_warning("--master-port={} cannot be used here ({}): another port is chosen", *options.master_port,
                  bound.error().message());
      listen.port = 0;
      bound = tcp_listen(listen);
    }
    if (!bound) return std::move(bound).error().with_context("the workers' store");
    listener = std::move(*bound);
    return listener->port;
  }

  asio::awaitable<std::variant<rdzv::Assignment, JobOutcome>> join(Round last_round) {
    const TimePoint begin = SteadyClock::now();
    auto port = bind_store();
    if (!port) co_return outcome_of(JobOutcome::Kind::cannot_start, exit_code::kFailure, port.error().message());
    client->join(last_round, *port);
    std::optional<TimePoint> again_at;
    std::string refused;
    while (true) {
      const TimePoint now = SteadyClock::now();
      if (const auto since = client->disconnected_since()) {
        if (now >= std::max(begin, *since) + options.times.join_timeout) co_return unreachable();
      }
      if (!refused.empty() && now >= begin + options.times.join_timeout) {
        co_return outcome_of(JobOutcome::Kind::unavailable, exit_code::kUsage, refused);
      }
      if (again_at && now >= *again_at) {
        again_at.reset();
        client->join(last_round, *port);
      }
      auto event = co_await next(again_at ? std::min(*again_at, now + kLook) : now + kLook);
      if (!event) continue;
      if (auto* stop_request = std::get_if<StopRequest>(&*event)) {
        client->leave(rdzv::LeaveWhy::signalled, fmt::format("signal {}", stop_request->signal));
        co_return signalled(stop_request->signal);
      }
      if (auto* hopeless = std::get_if<Hopeless>(&*event)) {
        co_return outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable, "rendezvous: " + hopeless->why);
      }
      if (std::holds_alternative<NobodyThere>(*event) && !host && !is_static() && !options.is_host.has_value()) {
        co_await try_to_host();
        if (client_endpoint) client->set_endpoint(*client_endpoint);
        continue;
      }
      auto* message = std::get_if<rdzv::ServerMessage>(&*event);
      if (message == nullptr) continue;
      if (auto* assignment = std::get_if<rdzv::Assignment>(message)) {
        if (assignment->round <= last_round) continue;
        if (is_static()) {
          assignment->master = endpoint;
          if (!is_literal(endpoint.host)) assignment->master.host = client->server_address();
        }
        log_info(
            "rendezvous complete round={} group_rank={} group_world_size={} world_size={} restart_count={} took_ms={}",
            assignment->round.value, assignment->group_rank.value, assignment->group_world_size, assignment->world_size,
            assignment->restart_count, std::chrono::duration_cast<milliseconds>(SteadyClock::now() - begin).count());
        co_return *assignment;
      }
      if (auto* finished = std::get_if<rdzv::Finished>(message)) co_return ended_well(*finished, "as a spare");
      if (auto* shutdown = std::get_if<rdzv::Shutdown>(message)) co_return shut_down(std::move(*shutdown));
      if (auto* refusal = std::get_if<rdzv::Refused>(message)) {
        if (!refusal->retry) {
          co_return outcome_of(JobOutcome::Kind::unavailable, exit_code::kUsage,
                               "the rendezvous refused: " + refusal->reason);
        }
        if (refused.empty()) log_warning("the rendezvous refused, trying again: {}", refusal->reason);
        refused = "the rendezvous refused: " + refusal->reason;
        again_at = SteadyClock::now() + kRefusedRetry;
        continue;
      }
      other(*message);
    }
  }

  static bool is_literal(const std::string& host) {
    boost::system::error_code ec;
    asio::ip::make_address(host, ec);
    return !ec;
  }

  JobOutcome unreachable() const {
    const auto limit = std::chrono::duration_cast<std::chrono::seconds>(options.times.join_timeout).count();
    return outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable,
                      fmt::format("rendezvous timed out after {} s: nobody serves {}: {} (--rdzv-conf join_timeout)",
                                  limit, endpoint.to_string(), client->last_problem()));
  }

  static JobOutcome signalled(int signal) {
    const char* name = ::sigabbrev_np(signal);
    return outcome_of(
        JobOutcome::Kind::signalled, exit_code::kSignalBase + signal,
        name != nullptr ? fmt::format("stopped by SIG{}", name) : fmt::format("stopped by signal {}", signal));
  }

  static JobOutcome ended_well(const rdzv::Finished& finished, const char* how) {
    if (finished.result == rdzv::DoneResult::success) {
      log_info("the job ended well {}", how);
      return JobOutcome();
    }
    return outcome_of(JobOutcome::Kind::resume_me, exit_code::kResumeMe,
                      "every worker ended with 75: state is saved, start the job again to resume");
  }

  JobOutcome shut_down(rdzv::Shutdown shutdown) {
    switch (shutdown.cause) {
      case rdzv::ShutdownCause::worker_failure: {
        JobOutcome outcome;
        outcome.kind = JobOutcome::Kind::worker_failure;
        outcome.failures = std::move(shutdown.failures);
        outcome.exit_code = exit_code::kFailure;
        if (shutdown.root) {
          outcome.root_cause = outcome.failures.at(*shutdown.root);
          // More than the report says anyhow: why there was no further attempt.
          if (shutdown.reason != rdzv::describe(*outcome.root_cause)) outcome.reason = std::move(shutdown.reason);
          outcome.exit_code = exit_code_for(*outcome.root_cause);
        }
        return outcome;
      }
      case rdzv::ShutdownCause::too_few_nodes:
        return outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable, std::move(shutdown.reason));
      case rdzv::ShutdownCause::stopped:
      case rdzv::ShutdownCause::drained:
      case rdzv::ShutdownCause::daemon_stops:
        break;
    }
    return outcome_of(JobOutcome::Kind::stopped, exit_code::kSignalBase + SIGTERM, std::move(shutdown.reason));
  }

  // News that change nothing here.
  void other(rdzv::ServerMessage& message) {
    if (auto* notice = std::get_if<rdzv::Notice>(&message)) {
      log_info("rendezvous: {}", notice->text);
    } else if (auto* request = std::get_if<rdzv::FlightRequest>(&message)) {
      rdzv::FlightReply reply;
      reply.id = request->id;
      if (hooks.flight_record) reply.bytes = hooks.flight_record(request->max_bytes);
      client->send_flight(std::move(reply));
    }
  }

  // --- one round

  struct Current {
    Current(const rdzv::Assignment& a, std::int64_t nproc, milliseconds patience)
        : assignment(a), policy(nproc, patience) {}
    rdzv::Assignment assignment;
    RestartPolicy policy;
    bool started = false;  // the group has been started and must be stopped (drained) once
    bool stopping = false, stopped = false;
    std::optional<Verdict> verdict;
    std::optional<FailureRecord> failure;  // of this node
    bool permanent = false;
    TimePoint started_at;
    TimePoint failed_at;
    std::optional<rdzv::DoneResult> done;
    TimePoint done_at;
    int signal = 0;  // that we were told to stop with
    bool outage_told = false;
  };

  asio::awaitable<Verdict> run_round(rdzv::Assignment assignment) {
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
      auto event = co_await next(until);
      if (event) {
        handle(c, *event);
      } else {
        look_around(c);
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

  Result<void> serve_store(const rdzv::Assignment& assignment) {
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
      store->clear();
      return Result<void>();
    }
    auto made = services.make_worker_store(io, std::move(*listener));
    listener.reset();
    if (!made) return std::move(made).error();
    store = std::move(*made);
    return Result<void>();
  }

  void start_workers(Current& c) {
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
    if (!group) group = hooks.make_group();
    auto started = group->start(std::move(*specs));
    if (!started) return start_failed(c, started.error());
    c.started = true;
    c.started_at = SteadyClock::now();
    log_info("started {} workers ranks={}..{} of {}", options.nproc, a.first_rank.value,
             a.first_rank.value + options.nproc - 1, a.world_size);
    tasks.spawn(pump_exits());
  }

  asio::awaitable<void> pump_exits() {
    while (true) {
      auto exit = co_await group->next_exit();
      if (!exit) co_return;
      push(std::move(*exit));
    }
  }

  void start_failed(Current& c, const Error& error) {
    FailureRecord record = blank_record(c);
    record.message = fmt::format("{} cannot start its workers: {}", self_host, error.message());
    record.exit_code = error.code() == Errc::not_found ? exit_code::kProgramNotFound : exit_code::kNotExecutable;
    report_failure(c, std::move(record), true);
  }

  FailureRecord blank_record(const Current& c) const {
    FailureRecord record;
    record.rank = c.assignment.first_rank;
    record.group_rank = c.assignment.group_rank;
    record.round = c.assignment.round;
    record.restart_count = c.assignment.restart_count;
    record.host = self_host;
    return record;
  }

  void report_failure(Current& c, FailureRecord record, bool permanent) {
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    record.unix_time = std::chrono::duration_cast<milliseconds>(wall);  // the rendezvous stamps it with its own
    c.failure = std::move(record);
    c.permanent = permanent;
    c.failed_at = SteadyClock::now();
    tell_failure(c);
  }

  void tell_failure(const Current& c) {
    rdzv::Failure failure;
    failure.age = std::chrono::duration_cast<milliseconds>(SteadyClock::now() - c.failed_at);
    failure.permanent = c.permanent;
    failure.quick = c.started && c.failed_at - c.started_at <= options.crash_loop_window;
    failure.record = *c.failure;
    client->failed(std::move(failure));
  }

  void add_evidence(FailureRecord& record) const {
    if (!group || !record.message.empty()) return;
    WorkerEvidence evidence = group->evidence(record.local_rank);
    record.last_lines = std::move(evidence.last_lines);
    record.error_file_json = std::move(evidence.error_file_json);
    record.log_paths = std::move(evidence.log_paths);
    record.out_of_memory = evidence.out_of_memory;
  }

  // The verdict may have been made before our evidence was complete.
  void add_own_evidence(const Current& c, JobOutcome& outcome) const {
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

  void begin_stop(Current& c, int signal, milliseconds patience) {
    if (!c.started || c.stopped) return;
    if (c.stopping) return;
    c.stopping = true;
    tasks.spawn(stop_group(signal, patience));
  }

  asio::awaitable<void> stop_group(int signal, milliseconds patience) {
    co_await group->stop(signal, patience);
    push(Stopped());
  }

  asio::awaitable<void> kill_group() { co_await group->stop(SIGKILL, milliseconds(0)); }

  void handle(Current& c, Event& event) {
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

  void on_exit(Current& c, const WorkerExit& exit) {
    if (exit.stopped_by_us || c.stopping) return;
    decide(c, c.policy.on_exit(exit.local_rank, exit.status.code, exit.status.signal, exit.at), exit.at);
  }

  void decide(Current& c, const RestartPolicy::Decision& decision, TimePoint at) {
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

  void on_stopped(Current& c) {
    c.stopped = true;
    if (c.failure) {
      FailureRecord complete = *c.failure;
      add_evidence(complete);
      c.failure = std::move(complete);
      if (!c.verdict) tell_failure(c);
    }
    if (c.signal != 0) c.verdict = after_signal(c.signal);
  }

  JobOutcome after_signal(int signal) const {
    const auto exits = group ? group->exits() : std::vector<WorkerExit>();
    bool resumable = static_cast<std::int64_t>(exits.size()) == options.nproc;
    for (const WorkerExit& exit : exits) {
      resumable = resumable && exit.status.signal == 0 && exit.status.code == exit_code::kResumeMe;
    }
    if (!resumable) return signalled(signal);
    rdzv::Finished finished;
    finished.result = rdzv::DoneResult::resume_me;
    return ended_well(finished, "");
  }

  void on_lease_expired(Current& c) {
    if (options.on_silence == OnSilence::keep) {
      log_warning("the rendezvous is silent: workers run on (--rdzv-conf on_silence=keep)");
      return;
    }
    if (c.verdict || c.done) return;
    log_warning("the rendezvous is silent, this node may be cut off: stopping its workers, then joining again");
    c.verdict = Again();
    begin_stop(c, SIGTERM, std::min(options.shutdown_timeout, kSilencePatience));
  }

  void on_stop_request(Current& c, int signal) {
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
      group->signal_all(signal);  // they were being stopped for another reason
    } else {
      begin_stop(c, signal, options.shutdown_timeout);
    }
  }

  void on_message(Current& c, rdzv::ServerMessage& message) {
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

  void on_shutdown(Current& c, rdzv::Shutdown shutdown) {
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
      // As if we had been told to stop with SIGTERM: workers that save and end with 75 make it 75.
      c.signal = SIGTERM;
      if (!c.started || c.stopped) return;
    }
    begin_stop(c, SIGTERM, options.shutdown_timeout);
  }

  // Nothing happened for a while: is something overdue?
  void look_around(Current& c) {
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

  asio::io_context& io;
  AgentOptions options;
  Services services;
  AgentHooks hooks;
  asio::steady_timer wake;
  TaskGroup tasks;
  std::deque<Event> events;

  Endpoint endpoint;                        // as others know it
  std::optional<Endpoint> client_endpoint;  // as we reach it when we are the host
  std::string self_host;
  std::unique_ptr<RendezvousHost> host;
  std::unique_ptr<RendezvousClient> client;
  std::optional<Listener> listener;
  std::unique_ptr<WorkerStore> store;
  std::unique_ptr<WorkerGroup> group;
  std::unique_ptr<Current> current;
  std::int64_t spawn_number = 0;
};

Agent::Agent(asio::io_context& io, AgentOptions options, Services services, AgentHooks hooks)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(services), std::move(hooks))) {}

Agent::~Agent() = default;

asio::awaitable<JobOutcome> Agent::run() { return impl_->run(); }
void Agent::stop(int signal) { impl_->stop(signal); }
void Agent::forward(int signal) { impl_->forward(signal); }
std::string Agent::rendezvous_endpoint() const { return impl_->endpoint_text(); }

}  // namespace ddprun::launcher
