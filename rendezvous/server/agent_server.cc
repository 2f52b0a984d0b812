#include "rendezvous/server/agent_server.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <utility>

#include "common/log.h"
#include "common/tcp.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds kReadMargin{10};  // beyond T_lost: after that nobody looks at the node any more

}  // namespace

AgentServer::AgentServer(Acceptor& acceptor, JobRunner& runner, std::shared_ptr<AdminService> admin,
                         std::string greeting)
    : acceptor_(acceptor), runner_(runner), admin_(std::move(admin)), greeting_(std::move(greeting)) {}

void AgentServer::start() {
  acceptor_.set_taker(rdzv::kMagic.front(), [weak = weak_from_this()](Acceptor::Opening opening) {
    if (const auto self = weak.lock()) self->accept(std::move(opening));
  });
}

void AgentServer::accept(Acceptor::Opening opening) {
  if (closed_ || leaving_) return;
  auto socket = acceptor_.to_socket(opening);
  if (!socket) return;
  AgentConnection::Handlers handlers;
  const std::weak_ptr<AgentServer> weak = weak_from_this();
  handlers.on_agent = [weak](AgentConnection& connection, rdzv::AgentMessage message) {
    if (const auto self = weak.lock()) self->on_agent(connection, std::move(message));
  };
  handlers.on_operator = [weak](AgentConnection& connection, rdzv::OperatorMessage message) {
    const auto self = weak.lock();
    if (self && !self->closed_ && !self->leaving_) self->on_operator(connection, std::move(message));
  };
  handlers.on_refused = [weak](AgentConnection& connection, const std::string& why) {
    if (const auto self = weak.lock()) self->refused(connection, why);
  };
  handlers.on_drained = [weak](AgentConnection& connection) {
    const auto self = weak.lock();
    if (self && !self->closed_) self->admin_->on_drained(connection);
  };
  handlers.on_end = [weak](AgentConnection& connection, bool lost, const std::string& why) {
    if (const auto self = weak.lock()) self->on_end(connection, lost, why);
  };
  handlers.on_too_much = [weak] {
    if (const auto self = weak.lock()) self->drop_the_slowest();
  };
  auto connection = std::make_shared<AgentConnection>(std::move(*socket), std::string(opening.bytes), greeting_,
                                                      std::move(handlers), acceptor_.strangers(), unsent_);
  acceptor_.strangers()->replace(opening.stranger, *connection);
  AgentConnection* key = connection.get();
  connections_[key] = connection;
  ++accepted_;
  // It ends when its connection does, at the latest by close(), and holds itself until then; the handlers hold
  // nothing.
  asio::co_spawn(acceptor_.context(), connection->run(), [connection](std::exception_ptr failure) {
    if (failure) std::rethrow_exception(failure);
  });
}

void AgentServer::refused(const AgentConnection& connection, const std::string& why) {
  ++refused_count_;
  refusal_log_.note(
      [&](std::uint64_t n) { log_warning("connection from {} refused: {} so_far={}", connection.peer(), why, n); });
}

// Whoever fills the most of it goes.
void AgentServer::drop_the_slowest() {
  AgentConnection* slowest = nullptr;
  for (const auto& [key, connection] : connections_) {
    if (connection->closed()) continue;
    if (slowest == nullptr || connection->held() > slowest->held()) slowest = key;
  }
  if (slowest == nullptr) return;
  log_warning(
      "the buffers of all agents and operators are full: closed the connection of {}, which fills {} of {} bytes",
      slowest->peer(), slowest->held(), unsent_->bytes);
  slowest->close("it fills the most of the buffers, and they are full");
}

// --- messages of operators

void AgentServer::on_operator(AgentConnection& connection, rdzv::OperatorMessage message) {
  const auto known = operators_.find(&connection);
  if (known == operators_.end() && !make_room_for_operator(connection)) {
    rdzv::Reply full;
    full.ok = false;
    full.text = fmt::format("{} operators are being served now: try again in a moment", kOperators);
    connection.send(full);
    connection.close_after_sending();
    return;
  }
  operators_[&connection] = SteadyClock::now();
  admin_->on_message(connection, std::move(message));
}

// Of those for whom nothing is under way the one that was silent longest goes. From this host an operator always gets
// in: then one of another host goes in the middle of its answer.
bool AgentServer::make_room_for_operator(const AgentConnection& newcomer) {
  if (operators_.size() < kOperators) return true;
  AgentConnection* victim = nullptr;
  for (const auto& [connection, last] : operators_) {
    const bool may_go = connection->is_idle() || (newcomer.peer_is_loopback() && !connection->peer_is_loopback());
    if (may_go && (victim == nullptr || last < operators_.at(victim))) victim = connection;
  }
  if (victim == nullptr) return false;
  operators_.erase(victim);
  victim->close("another operator has come, and there is room for " + std::to_string(kOperators));
  return true;
}

// --- messages of agents

void AgentServer::on_agent(AgentConnection& connection, rdzv::AgentMessage message) {
  if (leaving_) return;  // it says it again to the next daemon
  const TimePoint now = SteadyClock::now();
  if (auto* join = std::get_if<rdzv::Join>(&message)) {
    correct_address(connection, join->node);
    Job* job = introduce(connection, join->node, join->connection, join->session_key);
    if (job != nullptr) runner_.apply(*job, job->membership.on(*join, now), now);
    return;
  }
  if (auto* registration = std::get_if<rdzv::Register>(&message)) {
    correct_address(connection, registration->node);
    Job* job = introduce(connection, registration->node, registration->connection, registration->session_key);
    if (job != nullptr) runner_.apply(*job, job->membership.on(*registration, now), now);
    return;
  }
  const auto found = runner_.jobs().find(connection.run_id);
  if (connection.node_id.value.empty() || found == runner_.jobs().end()) {
    connection.close("a message before Join");
    return;
  }
  Job& job = found->second;
  Membership& membership = job.membership;
  membership.heard(connection.node_id, now);
  if (auto* beat_message = std::get_if<rdzv::Heartbeat>(&message)) {
    rdzv::HeartbeatAck ack;
    ack.sequence = beat_message->sequence;
    if (beat_message->want_reason) ack.reason = membership.why_waiting(now);
    connection.send(ack);
  } else if (auto* leave = std::get_if<rdzv::Leave>(&message)) {
    runner_.apply(job, membership.on(connection.node_id, *leave, now), now);
  } else if (auto* failure = std::get_if<rdzv::Failure>(&message)) {
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    failure->record.unix_time = std::chrono::duration_cast<std::chrono::milliseconds>(wall) - failure->age;
    runner_.apply(job, membership.on(connection.node_id, *failure, now), now);
  } else if (auto* done = std::get_if<rdzv::Done>(&message)) {
    runner_.apply(job, membership.on(connection.node_id, *done, now), now);
  } else if (auto* flight = std::get_if<rdzv::FlightReply>(&message)) {
    admin_->on_flight(connection, *flight);
  }
}

// What calls itself loopback and comes from another host (--local-addr=localhost there) is reached where it comes
// from.
void AgentServer::correct_address(const AgentConnection& connection, rdzv::NodeInfo& node) {
  if (connection.peer_is_loopback() || connection.peer_address().empty()) return;
  if (is_loopback(node.address)) node.address = connection.peer_address();
}

// The connection speaks for this node from now on; an older connection of it is closed. nullptr: it may not, and is
// closed itself.
Job* AgentServer::introduce(AgentConnection& connection, const rdzv::NodeInfo& node, std::uint64_t number,
                            const std::string& session_key) {
  if (!connection.node_id.value.empty() && (connection.node_id != node.node_id || connection.run_id != node.run_id)) {
    log_warning("agent {}: one connection speaks for {} and {}: connection closed", connection.peer(),
                connection.node_id.value, node.node_id.value);
    connection.close("it speaks for two nodes");
    return nullptr;
  }
  if (only_ && node.run_id != *only_) {
    connection.close("it is of another job than the one that is served here");
    return nullptr;
  }
  Job* const made = runner_.job_of(node.run_id);
  if (made == nullptr) {
    rdzv::Refused refused;
    refused.retry = true;
    refused.reason = fmt::format("the rendezvous serves {} run ids already", JobRunner::kMostJobs);
    connection.send(refused);
    connection.close_after_sending();
    return nullptr;
  }
  Job& job = *made;
  if (!job.sessions.may_speak(node.node_id, session_key)) {
    impostor_log_.note([&](std::uint64_t n) {
      log_warning(
          "agent {} speaks for node {} of job {}, which another one began (session key): connection closed so_far={}",
          connection.peer(), node.node_id.value, node.run_id.value, n);
    });
    rdzv::Refused refused;
    refused.reason = "node " + node.node_id.value + " belongs to another agent";
    connection.send(refused);
    connection.close_after_sending();
    return nullptr;
  }
  job.sessions.forget_others(job.connections.size() + job.membership.size(), [&](const NodeId& id) {
    return id == node.node_id || job.connections.contains(id) || job.membership.knows(id);
  });
  auto& slot = job.connections[node.node_id];
  if (slot && slot.get() != &connection) {
    if (slot->number > number) {  // sent before the node opened its newest connection, and late
      connection.close("the node has a newer connection");
      return nullptr;
    }
    slot->node_id = NodeId();
    slot->close("replaced by a newer connection");
  }
  slot = connection.shared_from_this();
  connection.run_id = node.run_id;
  connection.node_id = node.node_id;
  connection.number = number;
  connection.welcome();
  const Duration patience = node.job.lease() + Membership::kLostMargin + kReadMargin;
  connection.read_limit = std::chrono::duration_cast<std::chrono::milliseconds>(patience);
  if (!connection.peer_is_loopback() && !connection.own_address().empty()) {
    const std::string own = connection.own_address();
    job.membership.set_own_address(own.substr(0, own.find('%')));  // our zone means nothing on another host
  }
  return &job;
}

void AgentServer::on_end(AgentConnection& connection, bool lost, const std::string& why) {
  connections_.erase(&connection);
  operators_.erase(&connection);
  forget(connection, lost, why);
  if (!closed_) admin_->on_end(connection);
}

void AgentServer::forget(AgentConnection& connection, bool lost, const std::string& why) {
  const auto found = runner_.jobs().find(connection.run_id);
  if (closed_ || leaving_ || connection.node_id.value.empty() || found == runner_.jobs().end()) return;
  Job& job = found->second;
  const auto slot = job.connections.find(connection.node_id);
  if (slot == job.connections.end() || slot->second.get() != &connection) return;
  job.connections.erase(slot);
  if (!lost) {
    log_warning("connection of {} gave up ({}): it counts as silent until T_lost", connection.node_id.value, why);
    return;
  }
  const TimePoint now = SteadyClock::now();
  runner_.apply(job, job.membership.disconnected(connection.node_id, now), now);
}

void AgentServer::say_goodbye(const rdzv::Shutdown& goodbye) {
  leaving_ = true;
  for (const auto& [key, connection] : connections_) {
    if (!connection->node_id.value.empty()) connection->send(goodbye);
    connection->close_after_sending();
  }
}

void AgentServer::close() {
  if (closed_) return;
  closed_ = true;
  const auto all = std::exchange(connections_, {});
  for (const auto& [key, connection] : all) connection->close("the rendezvous stops");
}

}  // namespace ddprun::rendezvous
