#include "rendezvous/server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/log.h"
#include "common/rdzv_greeting.h"
#include "rendezvous/agent_session.h"
#include "rendezvous/job.h"
#include "rendezvous/operator_desk.h"
#include "rendezvous/state_writer.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::size_t kNewsKept = 100;
constexpr std::size_t kIdleJobsKept = 1'000;
constexpr std::chrono::seconds kPulse{1};  // how often we notice that we did not run
constexpr std::chrono::seconds kStall{2};  // a longer gap is our fault, not the agents'
constexpr std::chrono::seconds kRefusalPause{10};
constexpr std::chrono::seconds kReadMargin{10};  // beyond T_lost: after that nobody looks at the node any more

}  // namespace

struct RendezvousServer::Impl : std::enable_shared_from_this<RendezvousServer::Impl> {
  Impl(asio::io_context& context, ServerOptions o)
      : io(context), options(std::move(o)), timer(context), pulse(context) {}

  void start(Listener listener) {
    store = std::make_unique<StoreServer>(io, std::move(listener), options.store);
    std::weak_ptr<Impl> weak = shared_from_this();
    store->on_foreign(rdzv::kMagic.front(), [weak](tcp::socket socket, std::string bytes) {
      if (const auto self = weak.lock()) self->accept(std::move(socket), std::move(bytes));
    });
    desk = std::make_shared<OperatorDesk>(io, jobs, options.token, [this](Job& job, Actions actions, TimePoint now) {
      apply(job, std::move(actions), now);
    });
    if (options.state_file) {
      // Both are called only until close().
      state = std::make_shared<StateWriter>(
          io, options.state_file, [this] { return worlds(); }, [this] { tell_held(); });
    }
    last_pulse = SteadyClock::now();
    for (const KnownWorld& world : options.worlds) {
      Job& job = job_of(world.run_id);
      job.membership.expect(world, last_pulse);
      job.known = world;
      job.last_change = last_pulse;
    }
    arm();
    beat();
  }

  void accept(tcp::socket socket, std::string bytes) {
    if (closed || leaving) return;
    AgentSession::Handlers handlers;
    std::weak_ptr<Impl> weak = shared_from_this();
    handlers.on_agent = [weak](AgentSession& session, rdzv::AgentMessage message) {
      if (const auto self = weak.lock()) self->on_agent(session, std::move(message));
    };
    handlers.on_operator = [weak](AgentSession& session, rdzv::OperatorMessage message) {
      const auto self = weak.lock();
      if (self && !self->closed && !self->leaving) self->desk->on_message(session, std::move(message));
    };
    handlers.on_refused = [weak](AgentSession& session, const std::string& why) {
      if (const auto self = weak.lock()) self->refused(session, why);
    };
    handlers.on_drained = [weak](AgentSession& session) {
      const auto self = weak.lock();
      if (self && !self->closed) self->desk->on_drained(session);
    };
    handlers.on_end = [weak](AgentSession& session, bool lost, const std::string& why) {
      if (const auto self = weak.lock()) self->on_end(session, lost, why);
    };
    auto session = std::make_shared<AgentSession>(std::move(socket), std::move(bytes), greeting(), std::move(handlers));
    AgentSession* key = session.get();
    sessions[key] = session;
    ++counters.agent_connections;
    // It ends when its connection does, at the latest by close(), and holds itself until then; the handlers hold
    // nothing.
    asio::co_spawn(io, session->run(), [session](std::exception_ptr failure) {
      if (failure) std::rethrow_exception(failure);
    });
  }

  // Agents of other jobs hear whose this is: it ends with that job, and may be for nobody else.
  std::string greeting() const {
    if (!options.embedded) return "daemon";
    return rdzv::embedded_greeting(options.hosted_for, options.own_run_only);
  }

  bool serves(const RunId& run_id) const { return !options.own_run_only || run_id == options.hosted_for; }

  // A scanner, or a cluster with another version, comes a thousand times: one line for the first, then one in a while.
  void refused(const AgentSession& session, const std::string& why) {
    ++counters.refused_connections;
    const TimePoint now = SteadyClock::now();
    if (next_refusal_line && now < *next_refusal_line) return;
    next_refusal_line = now + kRefusalPause;
    log_warning("connection from {} refused: {} so_far={}", session.peer(), why, counters.refused_connections);
  }

  Job& job_of(const RunId& run_id) {
    auto found = jobs.find(run_id);
    if (found == jobs.end()) {
      forget_idle_jobs();
      found = jobs.try_emplace(run_id, run_id).first;
    }
    return found->second;
  }

  // Old names are kept for their round numbers: what belongs to an old round is refused. Not for ever.
  void forget_idle_jobs() {
    while (jobs.size() >= kIdleJobsKept) {
      auto oldest = jobs.end();
      for (auto it = jobs.begin(); it != jobs.end(); ++it) {
        if (!it->second.membership.empty()) continue;
        if (oldest == jobs.end() || it->second.last_change < oldest->second.last_change) oldest = it;
      }
      if (oldest == jobs.end()) return;
      jobs.erase(oldest);
    }
  }

  // --- messages of agents

  void on_agent(AgentSession& session, rdzv::AgentMessage message) {
    if (leaving) return;  // it says it again to the next daemon
    const TimePoint now = SteadyClock::now();
    if (auto* join = std::get_if<rdzv::Join>(&message)) {
      correct_address(session, join->node);
      Job* job = introduce(session, join->node, join->connection);
      if (job != nullptr) apply(*job, job->membership.on(*join, now), now);
      return;
    }
    if (auto* registration = std::get_if<rdzv::Register>(&message)) {
      correct_address(session, registration->node);
      Job* job = introduce(session, registration->node, registration->connection);
      if (job != nullptr) apply(*job, job->membership.on(*registration, now), now);
      return;
    }
    const auto found = jobs.find(session.run_id);
    if (session.node_id.value.empty() || found == jobs.end()) {
      session.close("a message before Join");
      return;
    }
    Job& job = found->second;
    Membership& membership = job.membership;
    membership.heard(session.node_id, now);
    if (auto* beat_message = std::get_if<rdzv::Heartbeat>(&message)) {
      rdzv::HeartbeatAck ack;
      ack.sequence = beat_message->sequence;
      if (beat_message->want_reason) ack.reason = membership.why_waiting(now);
      session.send(ack);
    } else if (auto* leave = std::get_if<rdzv::Leave>(&message)) {
      apply(job, membership.on(session.node_id, *leave, now), now);
    } else if (auto* failure = std::get_if<rdzv::Failure>(&message)) {
      const auto wall = std::chrono::system_clock::now().time_since_epoch();
      failure->record.unix_time = std::chrono::duration_cast<std::chrono::milliseconds>(wall) - failure->age;
      apply(job, membership.on(session.node_id, *failure, now), now);
    } else if (auto* done = std::get_if<rdzv::Done>(&message)) {
      apply(job, membership.on(session.node_id, *done, now), now);
    } else if (auto* flight = std::get_if<rdzv::FlightReply>(&message)) {
      desk->on_flight(session, *flight);
    }
  }

  // What calls itself loopback and comes from another host (--local-addr=localhost there) is reached where it comes
  // from.
  static void correct_address(const AgentSession& session, rdzv::NodeInfo& node) {
    if (session.peer_is_loopback() || session.peer_address().empty()) return;
    if (node.address == "localhost" || is_loopback(node.address)) node.address = session.peer_address();
  }

  // The session speaks for this node from now on; an older connection of it is closed. nullptr: it may not, and is
  // closed itself.
  Job* introduce(AgentSession& session, const rdzv::NodeInfo& node, std::uint64_t connection) {
    if (!serves(node.run_id)) {
      session.close("it is of another job than the one that is served here");
      return nullptr;
    }
    if (!session.node_id.value.empty() && (session.node_id != node.node_id || session.run_id != node.run_id)) {
      log_warning("agent {}: one connection speaks for {} and {}: connection closed", session.peer(),
                  session.node_id.value, node.node_id.value);
      session.close("it speaks for two nodes");
      return nullptr;
    }
    Job& job = job_of(node.run_id);
    auto& slot = job.sessions[node.node_id];
    if (slot && slot.get() != &session) {
      if (slot->connection > connection) {  // sent before the node opened its newest connection, and late
        session.close("the node has a newer connection");
        return nullptr;
      }
      slot->node_id = NodeId();
      slot->close("replaced by a newer connection");
    }
    slot = session.shared_from_this();
    session.run_id = node.run_id;
    session.node_id = node.node_id;
    session.connection = connection;
    const Duration patience = node.lease() + Membership::kLostMargin + kReadMargin;
    session.read_limit = std::chrono::duration_cast<std::chrono::milliseconds>(patience);
    if (!session.peer_is_loopback() && !session.own_address().empty()) {
      const std::string own = session.own_address();
      job.membership.set_own_address(own.substr(0, own.find('%')));  // our zone means nothing on another host
    }
    return &job;
  }

  void on_end(AgentSession& session, bool lost, const std::string& why) {
    sessions.erase(&session);
    forget(session, lost, why);
    if (!closed) desk->on_end(session);
  }

  void forget(AgentSession& session, bool lost, const std::string& why) {
    const auto found = jobs.find(session.run_id);
    if (closed || leaving || session.node_id.value.empty() || found == jobs.end()) return;
    Job& job = found->second;
    const auto slot = job.sessions.find(session.node_id);
    if (slot == job.sessions.end() || slot->second.get() != &session) return;
    job.sessions.erase(slot);
    if (!lost) {
      log_warning("connection of {} gave up ({}): it counts as silent until T_lost", session.node_id.value, why);
      return;
    }
    const TimePoint now = SteadyClock::now();
    apply(job, job.membership.disconnected(session.node_id, now), now);
  }

  void apply(Job& job, Actions actions, TimePoint now) {
    job.last_change = now;
    const Membership::Totals& totals = job.membership.totals();
    counters.restarts += totals.restarts - job.counted.restarts;
    counters.worker_failures += totals.failures - job.counted.failures;
    counters.nodes_lost += totals.departed - job.counted.departed;
    job.counted = totals;
    save(job);
    const bool wait = !job.held.empty() || !on_disk(job);
    bool hooked = false;
    for (Action& action : actions) {
      if (auto* send = std::get_if<Send>(&action)) {
        if (auto* assignment = std::get_if<rdzv::Assignment>(&send->message)) {
          if (assignment->group_rank.value == 0) ++counters.rounds;
          if (!hooked && static_hook && job.membership.backend() == rdzv::Backend::static_ranks) static_hook();
          hooked = true;
        } else if (auto* end = std::get_if<rdzv::Shutdown>(&send->message)) {
          if (end->cause == rdzv::ShutdownCause::too_few_nodes) ++counters.expired;
        }
        if (wait) {
          job.held.push_back(std::move(*send));
        } else {
          deliver(job, *send);
        }
      } else if (auto* drop = std::get_if<Drop>(&action)) {
        const auto found = job.sessions.find(drop->node);
        if (found == job.sessions.end()) continue;
        const auto session = found->second;
        job.sessions.erase(found);
        session->node_id = NodeId();
        session->close(drop->why);
      } else if (auto* news = std::get_if<News>(&action)) {
        // The launcher tells its own story; beside it the embedded server's is for debugging.
        if (options.embedded) {
          log_debug("rendezvous: {} run_id={}", news->text, job.membership.run_id().value);
        } else {
          log_info("{} run_id={}", news->text, job.membership.run_id().value);
        }
        job.news.push_back(std::move(news->text));
        if (job.news.size() > kNewsKept) job.news.pop_front();
      }
    }
    arm();
  }

  static void deliver(Job& job, const Send& send) {
    const auto found = job.sessions.find(send.node);
    if (found != job.sessions.end()) found->second->send(send.message);
  }

  // --- the state file: a new world is in it before its nodes hear of it, unless it cannot be written

  void save(Job& job) {
    if (!state) return;
    auto known = job.membership.known_world();
    if (known == job.known) return;
    job.known = std::move(known);
    const std::uint64_t change = state->changed();
    if (job.known) job.change = change;  // of a world that is over nobody needs to know before its end is told
  }

  bool on_disk(const Job& job) const { return !state || state->settled(job.change); }

  std::vector<KnownWorld> worlds() const {
    std::vector<KnownWorld> all;
    for (const auto& [id, job] : jobs) {
      if (job.known) all.push_back(*job.known);
    }
    return all;
  }

  void tell_held() {
    if (closed || leaving) return;
    for (auto& [id, job] : jobs) {
      if (job.held.empty() || !on_disk(job)) continue;
      for (const Send& send : std::exchange(job.held, {})) deliver(job, send);
    }
  }

  // --- time

  void arm() {
    if (closed) return;
    std::optional<TimePoint> next;
    for (const auto& [id, job] : jobs) {
      const auto t = job.membership.next_deadline();
      if (t && (!next || *t < *next)) next = t;
    }
    if (next == armed) return;
    armed = next;
    if (!next) {
      timer.cancel();
      return;
    }
    timer.expires_at(*next);
    timer.async_wait([weak = std::weak_ptr<Impl>(shared_from_this())](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (error || !self || self->closed || self->leaving) return;
      self->armed.reset();
      self->look_for_stall();
      const TimePoint now = SteadyClock::now();
      for (auto& [id, job] : self->jobs) {
        const auto due = job.membership.next_deadline();
        if (due && *due <= now) self->apply(job, job.membership.tick(now), now);
      }
      self->arm();
    });
  }

  void look_for_stall() {
    const TimePoint now = SteadyClock::now();
    const Duration gap = now - last_pulse;
    last_pulse = now;
    if (gap < kPulse + kStall) return;
    log_warning("this process did not run for {} ms: nobody's silence in that time counts",
                std::chrono::duration_cast<std::chrono::milliseconds>(gap).count());
    for (auto& [id, job] : jobs) job.membership.forgive(gap);
    armed.reset();
  }

  void beat() {
    pulse.expires_after(kPulse);
    pulse.async_wait([weak = std::weak_ptr<Impl>(shared_from_this())](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (error || !self || self->closed) return;
      if (self->leaving) return;
      self->look_for_stall();
      if (self->state) self->state->retry();
      self->arm();
      self->beat();
    });
  }

  void close() {
    if (closed) return;
    closed = true;
    if (state) state->close();
    timer.cancel();
    pulse.cancel();
    if (store) store->close();
    if (desk) desk->close();
    const auto all = std::exchange(sessions, {});
    for (const auto& [key, session] : all) session->close("the rendezvous stops");
    for (auto& [id, job] : jobs) job.sessions.clear();
  }

  asio::io_context& io;
  ServerOptions options;
  std::unique_ptr<StoreServer> store;
  Jobs jobs;
  std::shared_ptr<OperatorDesk> desk;
  std::unordered_map<AgentSession*, std::shared_ptr<AgentSession>> sessions;
  std::function<void()> static_hook;
  ServerCounters counters;
  std::optional<TimePoint> next_refusal_line;
  asio::steady_timer timer, pulse;
  std::optional<TimePoint> armed;
  TimePoint last_pulse;
  std::shared_ptr<StateWriter> state;  // may be null
  bool leaving = false;                // only the last words go out
  bool closed = false;
};

RendezvousServer::RendezvousServer(asio::io_context& io, Listener listener, ServerOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {
  impl_->start(std::move(listener));
}

RendezvousServer::~RendezvousServer() { close(); }

std::uint16_t RendezvousServer::port() const { return impl_->store->port(); }
StoreServer& RendezvousServer::store() { return *impl_->store; }
ServerCounters RendezvousServer::counters() const { return impl_->counters; }
void RendezvousServer::on_static_round(std::function<void()> hook) { impl_->static_hook = std::move(hook); }
void RendezvousServer::close() { impl_->close(); }

std::size_t RendezvousServer::agents() const {
  std::size_t count = 0;
  for (const auto& [id, job] : impl_->jobs) count += job.sessions.size();
  return count;
}

std::size_t RendezvousServer::agents_of(const RunId& run_id) const {
  const auto found = impl_->jobs.find(run_id);
  return found == impl_->jobs.end() ? 0 : found->second.sessions.size();
}

std::vector<JobStatus> RendezvousServer::jobs() const {
  std::vector<JobStatus> all;
  for (const auto& [id, job] : impl_->jobs) all.push_back(job.membership.status(SteadyClock::now()));
  return all;
}

std::vector<std::string> RendezvousServer::news_of(const RunId& run_id) const {
  const auto found = impl_->jobs.find(run_id);
  if (found == impl_->jobs.end()) return {};
  return std::vector<std::string>(found->second.news.begin(), found->second.news.end());
}

asio::awaitable<void> RendezvousServer::say_goodbye() {
  const auto impl = impl_;
  impl->leaving = true;
  impl->store->stop_accepting();
  rdzv::Shutdown goodbye;
  goodbye.cause = rdzv::ShutdownCause::daemon_stops;
  goodbye.reason = "the rendezvous was told to stop";
  for (const auto& [key, session] : impl->sessions) {
    if (!session->node_id.value.empty()) session->send(goodbye);
    session->close_after_sending();
  }
  // close_after_sending() is over within a second, also for a peer that does not read.
  asio::steady_timer poll(impl->io);
  const TimePoint limit = SteadyClock::now() + std::chrono::seconds(2);
  while (!impl->sessions.empty() && SteadyClock::now() < limit) {
    poll.expires_after(std::chrono::milliseconds(5));
    constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
    co_await poll.async_wait(as_tuple);
  }
  impl->close();
}

asio::awaitable<void> RendezvousServer::drain(RunId run_id, std::chrono::milliseconds grace) {
  const auto impl = impl_;
  asio::steady_timer poll(impl->io);
  const TimePoint limit = SteadyClock::now() + grace;
  while (!impl->closed && SteadyClock::now() < limit) {
    const auto found = impl->jobs.find(run_id);
    if (found == impl->jobs.end() || found->second.sessions.empty()) co_return;
    poll.expires_after(std::chrono::milliseconds(5));
    constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
    co_await poll.async_wait(as_tuple);
  }
}

}  // namespace ddprun::rendezvous
