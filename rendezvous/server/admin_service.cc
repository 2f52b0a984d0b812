#include "rendezvous/server/admin_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "rendezvous/server/status.h"

namespace ddprun::rendezvous {

namespace {

constexpr std::chrono::seconds kFlightLimit{5};  // for the answer of one node
// At most this many nodes are asked at a time, and none while more than this waits to be read: with answers of
// kMaxFlightBytes that stays below AgentConnection::kMaxUnsentOperator.
constexpr std::size_t kAskedAtOnce = 8;
constexpr std::size_t kUnsentFlight = 8u << 20;
constexpr std::size_t kFlightsAtOnce = 4;
constexpr std::size_t kHostsNamed = 8;
constexpr std::size_t kJobsNamed = 8;

std::string no_answer_from(const std::vector<std::string>& hosts) {
  if (hosts.empty()) return "";
  std::string text;
  for (std::size_t i = 0; i < std::min(hosts.size(), kHostsNamed); ++i) {
    text += (i == 0 ? "no answer from " : ", ") + hosts[i];
  }
  if (hosts.size() > kHostsNamed) text += fmt::format(" and {} more", hosts.size() - kHostsNamed);
  return text;
}

}  // namespace

bool same_secret(const std::string& given, const std::string& secret) {
  if (secret.empty()) return false;
  unsigned char difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (given[i] ^ secret[i % secret.size()]));
  }
  return difference == 0;
}

AdminService::AdminService(boost::asio::io_context& io, Jobs& jobs, std::string token, Apply apply)
    : io_(io), jobs_(jobs), token_(std::move(token)), apply_(std::move(apply)) {}

void AdminService::answer(AgentConnection& connection, bool ok, std::string text) {
  rdzv::Reply reply;
  reply.ok = ok;
  reply.text = std::move(text);
  connection.send(reply);
}

bool AdminService::may_command(const AgentConnection& connection, const std::string& token) const {
  return connection.peer_is_loopback() || same_secret(token, token_);
}

void AdminService::on_message(AgentConnection& connection, rdzv::OperatorMessage message) {
  if (auto* status = std::get_if<rdzv::StatusRequest>(&message)) {
    send_status(connection, status->run_id);
  } else if (auto* roster = std::get_if<rdzv::RosterRequest>(&message)) {
    send_roster(connection, roster->run_id);
  } else if (auto* flight = std::get_if<rdzv::FlightQuery>(&message)) {
    begin_flight(connection, flight->run_id);
  } else if (auto* drain_request = std::get_if<rdzv::DrainRequest>(&message)) {
    drain(connection, *drain_request);
  } else if (auto* stop_request = std::get_if<rdzv::StopRequest>(&message)) {
    stop(connection, *stop_request);
  }
}

// --- status and roster: whole when asked, sent in parts

// Those who ask while another one has not read the same answer yet share it: it is made and kept once.
std::shared_ptr<const std::string> AdminService::status_text(const std::string& run_id) {
  constexpr std::chrono::seconds kFresh{1};
  const TimePoint now = SteadyClock::now();
  if (auto unread = last_status_.lock(); unread && last_status_of_ == run_id && now - last_status_at_ < kFresh) {
    return unread;
  }
  std::vector<JobStatus> all;
  std::map<std::string, std::vector<std::string>> news;
  for (const auto& [id, job] : jobs_) {
    if (!run_id.empty() && id.value != run_id) continue;
    if (job.membership.empty() && job.membership.phase() != Phase::ended) continue;
    all.push_back(job.membership.status(now));
    news[id.value].assign(job.events.begin(), job.events.end());
  }
  auto text = std::make_shared<const std::string>(to_status_json(all, news));
  last_status_ = text;
  last_status_of_ = run_id;
  last_status_at_ = now;
  return text;
}

void AdminService::send_status(AgentConnection& connection, const std::string& run_id) {
  connection.stream([text = status_text(run_id), sent = std::size_t{0}]() mutable {
    std::optional<rdzv::ServerMessage> next;
    if (!text) return next;
    const std::size_t rest = text->size() - sent;
    if (rest > rdzv::kMaxPart) {
      rdzv::ReplyPart part;
      part.text = text->substr(sent, rdzv::kMaxPart);
      sent += rdzv::kMaxPart;
      next = std::move(part);
    } else {
      rdzv::Reply reply;
      reply.text = text->substr(sent);
      next = std::move(reply);
      text.reset();
    }
    return next;
  });
}

void AdminService::send_roster(AgentConnection& connection, const std::string& run_id) {
  const auto found = jobs_.find(RunId(run_id));
  if (found == jobs_.end()) return answer(connection, false, "no job '" + run_id + "' is known here");
  const Membership& membership = found->second.membership;
  if (membership.size() == 0 && membership.phase() == Phase::ended) {
    return answer(connection, false,
                  membership.why_waiting(SteadyClock::now()) + "; none of its nodes is here any more");
  }
  if (membership.size() == 0) return answer(connection, false, "no node of job '" + run_id + "' is here");
  connection.stream([entries = found->second.membership.roster(), sent = std::size_t{0}, over = false]() mutable {
    std::optional<rdzv::ServerMessage> next;
    if (sent < entries.size()) {
      rdzv::Roster page;
      const std::size_t end = std::min(entries.size(), sent + rdzv::kRosterPage);
      page.entries.assign(entries.begin() + static_cast<std::ptrdiff_t>(sent),
                          entries.begin() + static_cast<std::ptrdiff_t>(end));
      sent = end;
      next = std::move(page);
    } else if (!over) {
      over = true;
      next = rdzv::Reply();
    }
    return next;
  });
}

// --- commands

constexpr const char* kDenied =
    "refused: drain and stop are taken from loopback or with the daemon's token (--token-file) only";

void AdminService::drain(AgentConnection& connection, const rdzv::DrainRequest& request) {
  if (!may_command(connection, request.token)) return answer(connection, false, kDenied);
  const bool number = request.node.find_first_not_of("0123456789") == std::string::npos;
  if (number && request.run_id.empty()) {
    return answer(connection, false, "a number is a group rank of one job: name the job too (--rdzv-id)");
  }
  const TimePoint now = SteadyClock::now();
  std::size_t nodes = 0, jobs = 0;
  std::string per_job;
  for (auto& [id, job] : jobs_) {
    if (!request.run_id.empty() && id.value != request.run_id) continue;
    Actions actions;
    const std::size_t drained = job.membership.drain(request.node, "drained with ddpctl drain", now, actions);
    apply_(job, std::move(actions), now);
    if (drained == 0) continue;
    nodes += drained;
    if (++jobs <= kJobsNamed) per_job += fmt::format("{}{} {}", jobs == 1 ? "" : ", ", id.value, drained);
  }
  if (nodes == 0) return answer(connection, false, "no node '" + request.node + "' is in a job here");
  if (jobs > kJobsNamed) per_job += fmt::format(" and {} more jobs", jobs - kJobsNamed);
  answer(connection, true,
         fmt::format("drained {} {} ({}): {}", nodes, nodes == 1 ? "node" : "nodes", request.node, per_job));
}

void AdminService::stop(AgentConnection& connection, const rdzv::StopRequest& request) {
  if (!may_command(connection, request.token)) return answer(connection, false, kDenied);
  const TimePoint now = SteadyClock::now();
  const auto found = jobs_.find(RunId(request.run_id));
  if (found == jobs_.end() || found->second.membership.size() == 0 ||
      found->second.membership.phase() == Phase::ended) {
    return answer(connection, false, "no job '" + request.run_id + "' runs here");
  }
  apply_(found->second, found->second.membership.stop("stopped with ddpctl stop", now), now);
  answer(connection, true, "stopping " + request.run_id);
}

// --- flight records

void AdminService::begin_flight(AgentConnection& connection, const std::string& run_id) {
  const auto found = jobs_.find(RunId(run_id));
  if (found == jobs_.end() || found->second.connections.empty()) {
    return answer(connection, false, "no job '" + run_id + "' runs here");
  }
  if (flights_.size() >= kFlightsAtOnce) {
    return answer(connection, false, "other operators are asking for flight records now: try again in a moment");
  }
  const std::uint64_t id = ++flight_ids_;
  Flight& flight = flights_.try_emplace(id, io_).first->second;
  flight.asker = connection.weak_from_this();
  flight.run_id = RunId(run_id);
  connection.collect();
  for (const NodeStatus& node : found->second.membership.status(SteadyClock::now()).nodes) {
    if (node.group_rank >= 0) flight.to_ask.push_back(Node{node.node_id, node.host, node.group_rank});
  }
  advance(id);
}

// Asks as many as may be asked now; the end when nobody is left. Does nothing for a flight that is over.
void AdminService::advance(std::uint64_t id) {
  const auto found = flights_.find(id);
  if (found == flights_.end()) return;
  Flight& flight = found->second;
  const auto asker = flight.asker.lock();
  const auto job = jobs_.find(flight.run_id);
  if (!asker || asker->closed() || job == jobs_.end()) return end_flight(id);
  const TimePoint now = SteadyClock::now();
  const std::size_t silent_before = flight.silent.size();
  for (auto it = flight.asked.begin(); it != flight.asked.end();) {
    if (now < it->second.limit) {
      ++it;
      continue;
    }
    flight.silent.push_back(it->second.node.host);
    it = flight.asked.erase(it);
  }
  if (flight.silent.size() > silent_before) {  // a hundred silent nodes take longer than the operator waits for a word
    rdzv::Notice notice;
    notice.text =
        no_answer_from({flight.silent.begin() + static_cast<std::ptrdiff_t>(silent_before), flight.silent.end()});
    asker->send(notice);
  }
  while (!flight.to_ask.empty() && flight.asked.size() < kAskedAtOnce && asker->unsent() <= kUnsentFlight) {
    Node node = std::move(flight.to_ask.front());
    flight.to_ask.pop_front();
    const auto agent = job->second.connections.find(node.node_id);
    if (agent == job->second.connections.end()) {
      flight.silent.push_back(node.host);
      continue;
    }
    rdzv::FlightRequest request;
    request.id = id;
    agent->second->send(request);
    Asked asked;
    asked.node = node;
    asked.connection = agent->second.get();
    asked.limit = now + kFlightLimit;
    flight.asked.emplace(node.node_id, std::move(asked));
  }
  if (flight.asked.empty() && flight.to_ask.empty()) return end_flight(id);
  if (flight.asked.empty()) return;  // the operator reads slowly: on_drained() goes on
  TimePoint next = TimePoint::max();
  for (const auto& [node, asked] : flight.asked) next = std::min(next, asked.limit);
  flight.timer.expires_at(next);
  flight.timer.async_wait([weak = weak_from_this(), id](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (!error && self) self->advance(id);
  });
}

void AdminService::on_flight(AgentConnection& agent, rdzv::FlightReply& reply) {
  const auto found = flights_.find(reply.id);
  if (found == flights_.end()) return;
  Flight& flight = found->second;
  const auto asked = flight.asked.find(agent.node_id);
  if (asked == flight.asked.end() || asked->second.connection != &agent) return;
  rdzv::FlightPart part;
  part.host = asked->second.node.host;
  part.group_rank = asked->second.node.group_rank;
  part.bytes = std::move(reply.bytes);
  flight.asked.erase(asked);
  if (const auto asker = flight.asker.lock()) asker->send(part);
  advance(reply.id);
}

void AdminService::on_drained(AgentConnection& connection) {
  std::vector<std::uint64_t> its;
  for (const auto& [id, flight] : flights_) {
    if (flight.asker.lock().get() == &connection) its.push_back(id);
  }
  for (const std::uint64_t id : its) advance(id);
}

void AdminService::on_end(const AgentConnection& connection) {
  std::vector<std::uint64_t> touched;
  for (auto& [id, flight] : flights_) {
    bool touch = flight.asker.lock().get() == &connection;
    for (auto it = flight.asked.begin(); it != flight.asked.end();) {
      if (it->second.connection != &connection) {
        ++it;
        continue;
      }
      flight.silent.push_back(it->second.node.host);
      it = flight.asked.erase(it);
      touch = true;
    }
    if (touch) touched.push_back(id);
  }
  for (const std::uint64_t id : touched) advance(id);
}

void AdminService::end_flight(std::uint64_t id) {
  const auto found = flights_.find(id);
  if (found == flights_.end()) return;
  const auto asker = found->second.asker.lock();
  const std::vector<std::string> silent = std::move(found->second.silent);
  flights_.erase(found);
  if (!asker) return;
  answer(*asker, silent.empty(), no_answer_from(silent));
  asker->end_collecting();
}

void AdminService::close() { flights_.clear(); }

}  // namespace ddprun::rendezvous
