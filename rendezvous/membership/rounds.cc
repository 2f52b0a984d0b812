// Membership: when a round ends, when the next one forms, and who gets which rank.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "rendezvous/membership/membership.h"
#include "rendezvous/membership/rank_order.h"

namespace ddprun::rendezvous {

using rdzv::MemberState;

void Membership::begin_restart(const std::string& reason, TimePoint now, Actions& out) {
  phase_ = Phase::forming;
  reforming_ = true;
  restart_reason_ = reason;
  newcomer_.reset();
  verdict_.reset();
  last_call_.reset();
  out.push_back(Event{fmt::format("round {} ends: {}", round_.value, reason)});
  rdzv::Restart restart;
  restart.round = round_;
  restart.restart_count = restart_count_;
  restart.reason = reason;
  for (auto& [id, node] : nodes_) {
    if (node.state == MemberState::waiting) {
      node.join_deadline = now + config_.join_timeout;  // a spare that had no deadline
      look_again_at(node.join_deadline);
      continue;
    }
    set_state(node, MemberState::stopping);
    if (!node.closed && !node.leaving) out.push_back(Send{id, restart});
  }
  try_form(now, out);
}

void Membership::try_form(TimePoint now, Actions& out) {
  if (phase_ != Phase::forming || recover_until_ || count(MemberState::stopping) > 0) return;
  if (!residue_.empty()) {  // looked at again when they go
    if (last_call_ && now >= *last_call_) last_call_ = now + kCloseGrace;
    return;
  }
  const bool steady_ones = without_damped(now);
  const auto here = static_cast<std::int64_t>(steady_ones ? steady_waiting(now, false) : available());
  if (here < min_nodes() || here == 0) {
    last_call_.reset();
    return;
  }
  if (here >= config_.nnodes_max) {
    form(now, out);
    return;
  }
  if (steady_ones ? steady_waiting(now, true) > 0 : closed_waiting_ > 0) {  // known within kCloseGrace
    if (last_call_ && now >= *last_call_) last_call_ = now + kCloseGrace;
    return;
  }
  if (reforming_) {
    form(now, out);
    return;
  }
  if (!last_call_) last_call_ = now + config_.last_call_timeout;
  if (now >= *last_call_) form(now, out);
}

// --- nodes that come and go ---------------------------------------------------------------------------------------

// Who was in the last round, and stayed, is none of them.
bool Membership::is_steady(const Node& node, TimePoint now) const {
  return !node.welcome || now >= *node.welcome || (node.place && node.in_round == round_);
}

std::size_t Membership::steady_waiting(TimePoint now, bool closed) const {
  std::size_t count = closed ? closed_waiting_ : available();
  for (const NodeId& id : damped_) {
    const Node& node = nodes_.at(id);
    if (node.state == MemberState::waiting && node.closed.has_value() == closed && !is_steady(node, now)) --count;
  }
  return count;
}

// The minimum is there without them: nobody waits for them, and the round forms without them.
bool Membership::without_damped(TimePoint now) const {
  return !damped_.empty() && static_cast<std::int64_t>(steady_waiting(now, false)) >= min_nodes();
}

// A node goes that nobody sent away.
void Membership::count_stay(const Node& node, Round round, TimePoint now, Actions& out) {
  if (phase_ == Phase::ended) return;
  const std::string host = place_of(node.info);
  const bool member = node.state != MemberState::waiting && phase_ == Phase::running;
  if (!damping_.went(host, now - node.came, member ? round : Round(0), now)) return;
  out.push_back(Event{fmt::format(
      "{} came and went {} times, each time within {} s: it is taken in again when it has "
      "stayed {} s, unless the minimum of nodes needs it",
      host, damping_.times(host), whole_seconds(Damping::kShortStay), whole_seconds(damping_.patience(host, now)))});
}

void Membership::form(TimePoint now, Actions& out) {
  std::vector<Node*> chosen;
  const bool steady_ones = without_damped(now);
  for (auto& [id, node] : nodes_) {
    if (!node.closed && (!steady_ones || is_steady(node, now))) chosen.push_back(&node);
  }
  const auto max = static_cast<std::size_t>(config_.nnodes_max);
  const auto old = [&](const Node* n) { return n->place && n->in_round == round_; };
  if (chosen.size() > max) {
    std::sort(chosen.begin(), chosen.end(), [&](const Node* a, const Node* b) {
      if (old(a) != old(b)) return old(a);
      return a->arrival < b->arrival;
    });
    chosen.resize(max);
  }
  std::vector<RankCandidate> candidates;
  candidates.reserve(chosen.size());
  for (const Node* node : chosen) {
    RankCandidate c;
    c.hint = node->info.node_rank;
    if (old(node)) c.place = node->place;
    c.topology_key = node->info.topology_key;
    c.host = node->info.host;
    c.arrival = node->arrival;
    candidates.push_back(c);
  }
  const std::vector<std::size_t> order = rank_order(candidates);

  std::map<std::string_view, std::int64_t> role_sizes;
  world_size_ = 0;
  bool all_loopback = true;
  for (const Node* node : chosen) {
    role_sizes[node->info.role] += node->info.nproc;
    world_size_ += node->info.nproc;
    all_loopback = all_loopback && is_loopback(node->info.address);
  }
  group_world_size_ = static_cast<std::int64_t>(chosen.size());
  round_ = Round(std::max(round_, highest_round_).value + 1);
  phase_ = Phase::running;
  departure_ = counted_ = finished_went_ = false;
  reforming_ = true;
  failures_.clear();
  suspects_.clear();
  no_state_.clear();
  last_call_.reset();

  const Node& first = *chosen[order.front()];
  Endpoint master{first.info.address, first.info.worker_store_port};
  if (is_loopback(master.host) && !all_loopback && !own_address_.empty()) master.host = own_address_;

  std::map<std::string_view, std::int64_t> role_ranks;
  std::int64_t next_rank = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    Node& node = *chosen[order[i]];
    rdzv::Assignment a;
    a.round = round_;
    a.group_rank = GroupRank(static_cast<std::int64_t>(i));
    a.group_world_size = group_world_size_;
    a.first_rank = Rank(next_rank);
    a.world_size = world_size_;
    a.first_role_rank = role_ranks[node.info.role];
    a.role_world_size = role_sizes[node.info.role];
    a.restart_count = restart_count_;
    a.master = master;
    next_rank += node.info.nproc;
    role_ranks[node.info.role] += node.info.nproc;
    node.place = static_cast<std::int64_t>(i);
    node.in_round = round_;
    node.slice = a;
    set_state(node, MemberState::running);
    out.push_back(Send{node.info.node_id, std::move(a)});
  }
  out.push_back(Event{fmt::format("round {} complete: {} {}, world size {}, {} of {} restarts used", round_.value,
                                  group_world_size_, group_world_size_ == 1 ? "node" : "nodes", world_size_,
                                  restart_count_, config_.max_restarts)});
  for (auto& [id, node] : nodes_) {
    if (node.state == MemberState::waiting) newcomer(node, now, out);
  }
}

rdzv::Shutdown Membership::expiry() const {
  rdzv::Shutdown shutdown;
  shutdown.cause = rdzv::ShutdownCause::too_few_nodes;
  const auto limit = whole_seconds(config_.join_timeout);
  const auto here = available();
  const std::string hosts = hosts_of(MemberState::waiting, 8);
  if (count(MemberState::stopping) > 0) {
    shutdown.reason = fmt::format("rendezvous timed out after {} s: {} did not stop the workers of round {}", limit,
                                  hosts_of(MemberState::stopping, 8), round_.value);
  } else if (recover_until_) {
    shutdown.reason = fmt::format(
        "rendezvous timed out after {} s: nodes of an earlier job of this run id may be cut off and still run, and the "
        "rendezvous was restarted; no round forms before they are dead. Try again in a moment, or give a longer "
        "--rdzv-conf join_timeout",
        limit);
  } else if (!residue_.empty()) {
    shutdown.reason = fmt::format(
        "rendezvous timed out after {} s: the workers of {} of the nodes of the last job of this run id may still "
        "run. Try again in a moment, or give a longer --rdzv-conf join_timeout",
        limit, residue_.size());
  } else if (reforming_ && group_world_size_ > 0) {
    shutdown.reason = fmt::format(
        "rendezvous timed out after {} s: {} of at least {} nodes are left ({}). {}, and nobody took "
        "the place (--rdzv-conf join_timeout)",
        limit, here, min_nodes(), hosts, restart_reason_);
  } else {
    shutdown.reason = fmt::format(
        "rendezvous timed out after {} s: {} of at least {} nodes joined ({}){}. Is every node "
        "started with --rdzv-id={} and this endpoint? (--rdzv-conf join_timeout)",
        limit, here, min_nodes(), hosts, missing_ranks(), run_id_.value);
  }
  return shutdown;
}

}  // namespace ddprun::rendezvous
