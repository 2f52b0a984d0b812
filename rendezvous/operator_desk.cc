#include "rendezvous/operator_desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "rendezvous/status.h"

namespace ddprun::rendezvous {

namespace {

constexpr std::chrono::seconds kFlightLimit{5};  // for the answer of one node
// At most this many nodes are asked at a time, and none while more than this waits to be read: with answers of
// kMaxFlightBytes that stays below AgentSession::kMaxUnsentOperator.
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

OperatorDesk::OperatorDesk(boost::asio::io_context& io, Jobs& jobs, std::string token, Apply apply)
    : io_(io), jobs_(jobs), token_(std::move(token)), apply_(std::move(apply)) {}

void OperatorDesk::answer(AgentSession& session, bool ok, std::string text) {
  rdzv::Reply reply;
  reply.ok = ok;
  reply.text = std::move(text);
  session.send(reply);
}

bool OperatorDesk::may_command(const AgentSession& session, const std::string& token) const {
  return session.peer_is_loopback() || same_secret(token, token_);
}

void OperatorDesk::on_message(AgentSession& session, rdzv::OperatorMessage message) {
  if (auto* status = std::get_if<rdzv::StatusRequest>(&message)) {
    send_status(session, status->run_id);
  } else if (auto* roster = std::get_if<rdzv::RosterRequest>(&message)) {
    send_roster(session, roster->run_id);
  } else if (auto* flight = std::get_if<rdzv::FlightQuery>(&message)) {
    begin_flight(session, flight->run_id);
  } else if (auto* drain_request = std::get_if<rdzv::DrainRequest>(&message)) {
    drain(session, *drain_request);
  } else if (auto* stop_request = std::get_if<rdzv::StopRequest>(&message)) {
    stop(session, *stop_request);
  }
}

// --- status and roster: whole when asked, sent in parts

void OperatorDesk::send_status(AgentSession& session, const std::string& run_id) {
  std::vector<JobStatus> all;
  std::map<std::string, std::vector<std::string>> news;
  for (const auto& [id, job] : jobs_) {
    if (!run_id.empty() && id.value != run_id) continue;
    if (job.membership.empty() && job.membership.phase() != Phase::ended) continue;
    all.push_back(job.membership.status(SteadyClock::now()));
    news[id.value].assign(job.news.begin(), job.news.end());
  }
  session.stream([text = to_status_json(all, news), sent = std::size_t{0}]() mutable {
    std::optional<rdzv::ServerMessage> next;
    const std::size_t rest = text.size() - sent;
    if (rest > rdzv::kMaxPart) {
      rdzv::ReplyPart part;
      part.text = text.substr(sent, rdzv::kMaxPart);
      next = std::move(part);
    } else if (!text.empty()) {
      rdzv::Reply reply;
      reply.text = text.substr(sent);
      next = std::move(reply);
      text.clear();
      sent = 0;
      return next;
    }
    sent += std::min<std::size_t>(rest, rdzv::kMaxPart);
    return next;
  });
}

void OperatorDesk::send_roster(AgentSession& session, const std::string& run_id) {
  const auto found = jobs_.find(RunId(run_id));
  if (found == jobs_.end()) return answer(session, false, "no job '" + run_id + "' is known here");
  const Membership& membership = found->second.membership;
  if (membership.size() == 0 && membership.phase() == Phase::ended) {
    return answer(session, false, membership.why_waiting(SteadyClock::now()) + "; none of its nodes is here any more");
  }
  if (membership.size() == 0) return answer(session, false, "no node of job '" + run_id + "' is here");
  session.stream([entries = found->second.membership.roster(), sent = std::size_t{0}, over = false]() mutable {
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

void OperatorDesk::drain(AgentSession& session, const rdzv::DrainRequest& request) {
  if (!may_command(session, request.token)) return answer(session, false, kDenied);
  const bool number = request.node.find_first_not_of("0123456789") == std::string::npos;
  if (number && request.run_id.empty()) {
    return answer(session, false, "a number is a group rank of one job: name the job too (--rdzv-id)");
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
  if (nodes == 0) return answer(session, false, "no node '" + request.node + "' is in a job here");
  if (jobs > kJobsNamed) per_job += fmt::format(" and {} more jobs", jobs - kJobsNamed);
  answer(session, true,
         fmt::format("drained {} {} ({}): {}", nodes, nodes == 1 ? "node" : "nodes", request.node, per_job));
}

void OperatorDesk::stop(AgentSession& session, const rdzv::StopRequest& request) {
  if (!may_command(session, request.token)) return answer(session, false, kDenied);
  const TimePoint now = SteadyClock::now();
  const auto found = jobs_.find(RunId(request.run_id));
  if (found == jobs_.end() || found->second.membership.size() == 0 ||
      found->second.membership.phase() == Phase::ended) {
    return answer(session, false, "no job '" + request.run_id + "' runs here");
  }
  apply_(found->second, found->second.membership.stop("stopped with ddpctl stop", now), now);
  answer(session, true, "stopping " + request.run_id);
}

// --- flight records

void OperatorDesk::begin_flight(AgentSession& session, const std::string& run_id) {
  const auto found = jobs_.find(RunId(run_id));
  if (found == jobs_.end() || found->second.sessions.empty()) {
    return answer(session, false, "no job '" + run_id + "' runs here");
  }
  if (flights_.size() >= kFlightsAtOnce) {
    return answer(session, false, "other operators are asking for flight records now: try again in a moment");
  }
  const std::uint64_t id = ++flight_ids_;
  Flight& flight = flights_.try_emplace(id, io_).first->second;
  flight.asker = session.weak_from_this();
  flight.run_id = RunId(run_id);
  session.collect();
  for (const NodeStatus& node : found->second.membership.status(SteadyClock::now()).nodes) {
    if (node.group_rank >= 0) flight.to_ask.push_back(Node{node.node_id, node.host, node.group_rank});
  }
  advance(id);
}

// Asks as many as may be asked now; the end when nobody is left. Does nothing for a flight that is over.
void OperatorDesk::advance(std::uint64_t id) {
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
    const auto agent = job->second.sessions.find(node.node_id);
    if (agent == job->second.sessions.end()) {
      flight.silent.push_back(node.host);
      continue;
    }
    rdzv::FlightRequest request;
    request.id = id;
    agent->second->send(request);
    Asked asked;
    asked.node = node;
    asked.session = agent->second.get();
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

void OperatorDesk::on_flight(AgentSession& agent, rdzv::FlightReply& reply) {
  const auto found = flights_.find(reply.id);
  if (found == flights_.end()) return;
  Flight& flight = found->second;
  const auto asked = flight.asked.find(agent.node_id);
  if (asked == flight.asked.end() || asked->second.session != &agent) return;
  rdzv::FlightPart part;
  part.host = asked->second.node.host;
  part.group_rank = asked->second.node.group_rank;
  part.bytes = std::move(reply.bytes);
  flight.asked.erase(asked);
  if (const auto asker = flight.asker.lock()) asker->send(part);
  advance(reply.id);
}

void OperatorDesk::on_drained(AgentSession& session) {
  std::vector<std::uint64_t> its;
  for (const auto& [id, flight] : flights_) {
    if (flight.asker.lock().get() == &session) its.push_back(id);
  }
  for (const std::uint64_t id : its) advance(id);
}

void OperatorDesk::on_end(const AgentSession& session) {
  std::vector<std::uint64_t> touched;
  for (auto& [id, flight] : flights_) {
    bool touch = flight.asker.lock().get() == &session;
    for (auto it = flight.asked.begin(); it != flight.asked.end();) {
      if (it->second.session != &session) {
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

void OperatorDesk::end_flight(std::uint64_t id) {
  const auto found = flights_.find(id);
  if (found == flights_.end()) return;
  const auto asker = found->second.asker.lock();
  const std::vector<std::string> silent = std::move(found->second.silent);
  flights_.erase(found);
  if (!asker) return;
  answer(*asker, silent.empty(), no_answer_from(silent));
  asker->end_collecting();
}

void OperatorDesk::close() { flights_.clear(); }

}  // namespace ddprun::rendezvous
