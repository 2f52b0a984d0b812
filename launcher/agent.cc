#include "launcher/agent.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/tcp.h"
#include "launcher/agent_impl.h"

// Hosting, connecting, joining; the round itself is in agent_round.cc.
namespace ddprun::launcher {
namespace {

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

}  // namespace

bool is_loopback_name(const std::string& host) { return host == "localhost" || is_loopback(host); }

JobOutcome outcome_of(JobOutcome::Kind kind, int code, std::string reason) {
  JobOutcome outcome;
  outcome.kind = kind;
  outcome.exit_code = code;
  outcome.reason = std::move(reason);
  return outcome;
}

asio::awaitable<JobOutcome> Agent::Impl::run() {
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
  workers.reset();
  group = nullptr;
  client.reset();
  co_return outcome;
}

void Agent::Impl::stop(int signal) {
  StopRequest request;
  request.signal = signal;
  push(request);
}

void Agent::Impl::forward(int signal) {
  if (group) group->forward(signal);
}

// --- events

void Agent::Impl::push(Event event) {
  events.push_back(std::move(event));
  wake.cancel();
}

asio::awaitable<std::optional<Event>> Agent::Impl::next(TimePoint until) {
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

asio::awaitable<Result<void>> Agent::Impl::prepare() {
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

asio::awaitable<void> Agent::Impl::try_to_host() {
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

Result<void> Agent::Impl::host_on(const std::string& address, std::uint16_t port) {
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

void Agent::Impl::start_client() {
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
  client_events.on_lease = [this](TimePoint) { tell_lease(); };
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

asio::awaitable<JobOutcome> Agent::Impl::live() {
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

Result<std::uint16_t> Agent::Impl::bind_store() {
  if (is_static()) return std::uint16_t{0};
  if (store && options.master_port) {  // the same port is kept over restarts
    store->hold();
    return store->port();
  }
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

asio::awaitable<std::variant<rdzv::Assignment, JobOutcome>> Agent::Impl::join(Round last_round) {
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
    if (auto* finished = std::get_if<rdzv::Finished>(message)) {
      if (spawn_number == 0 && finished->result == rdzv::DoneResult::success) {
        log_warning("the job of run id '{}' ended well without this node: it was a spare and never started a worker",
                    options.run_id.value);
        co_return JobOutcome();
      }
      co_return ended_well(*finished, "as a spare");
    }
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

bool Agent::Impl::is_literal(const std::string& host) {
  boost::system::error_code ec;
  asio::ip::make_address(host, ec);
  return !ec;
}

JobOutcome Agent::Impl::unreachable() const {
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(options.times.join_timeout).count();
  return outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable,
                    fmt::format("rendezvous timed out after {} s: nobody serves {}: {} (--rdzv-conf join_timeout)",
                                limit, endpoint.to_string(), client->last_problem()));
}

JobOutcome Agent::Impl::signalled(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return outcome_of(
      JobOutcome::Kind::signalled, exit_code::kSignalBase + signal,
      name != nullptr ? fmt::format("stopped by SIG{}", name) : fmt::format("stopped by signal {}", signal));
}

JobOutcome Agent::Impl::ended_well(const rdzv::Finished& finished, const char* how) {
  if (finished.result == rdzv::DoneResult::success) {
    log_info("the job ended well {}", how);
    return JobOutcome();
  }
  return outcome_of(JobOutcome::Kind::resume_me, exit_code::kResumeMe,
                    "every worker ended with 75: state is saved, start the job again to resume");
}

JobOutcome Agent::Impl::shut_down(rdzv::Shutdown shutdown) {
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

void Agent::Impl::other(rdzv::ServerMessage& message) {
  if (auto* notice = std::get_if<rdzv::Notice>(&message)) {
    log_write(notice->kind == rdzv::NoticeKind::spare ? LogLevel::warning : LogLevel::info,
              "rendezvous: " + notice->text);
  } else if (auto* request = std::get_if<rdzv::FlightRequest>(&message)) {
    rdzv::FlightReply reply;
    reply.id = request->id;
    if (hooks.flight_record) reply.bytes = hooks.flight_record(request->max_bytes);
    client->send_flight(std::move(reply));
  }
}

Agent::Agent(asio::io_context& io, AgentOptions options, Services services, AgentHooks hooks)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(services), std::move(hooks))) {}

Agent::~Agent() = default;

asio::awaitable<JobOutcome> Agent::run() { return impl_->run(); }
void Agent::stop(int signal) { impl_->stop(signal); }
void Agent::forward(int signal) { impl_->forward(signal); }
std::string Agent::rendezvous_endpoint() const { return impl_->endpoint_text(); }

}  // namespace ddprun::launcher
