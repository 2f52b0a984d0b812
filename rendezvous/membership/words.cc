// What Membership says about itself: reasons, status, roster, invariants.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "rendezvous/membership/membership.h"

namespace ddprun::rendezvous {

using rdzv::MemberState;

namespace {

std::string range_text(std::int64_t min, std::int64_t max) {
  return min == max ? std::to_string(min) : fmt::format("{}..{}", min, max);
}

}  // namespace

std::string Membership::hosts_of(MemberState state, std::size_t limit) const {
  std::string text;
  std::size_t named = 0;
  const std::size_t all = count(state);
  for (const auto& [id, node] : nodes_) {
    if (node.state != state) continue;
    if (named == limit) {
      text += fmt::format(" and {} more", all - named);
      break;
    }
    text += (named == 0 ? "" : ", ") + node.info.host;
    ++named;
  }
  return text.empty() ? "none" : text;
}

// Those for whom a round ends: without the damped ones.
std::string Membership::waiting_hosts(TimePoint now, std::size_t limit) const {
  if (damped_.empty()) return hosts_of(MemberState::waiting, limit);
  std::string text;
  for (const auto& [id, node] : nodes_) {
    if (node.state != MemberState::waiting || node.closed || !is_steady(node, now)) continue;
    if (limit-- == 0) return text + " and more";
    text += (text.empty() ? "" : ", ") + node.info.host;
  }
  return text;
}

// Members that may be lost, of whose loss others suffer: "the connection of c closed", "d is silent for 9 s".
std::string Membership::suspects(const NodeId& but, TimePoint now) const {
  constexpr std::size_t kNamed = 3;
  std::string text;
  std::size_t found = 0;
  for (const auto& [id, node] : nodes_) {
    const bool overdue = now - node.heard > node.info.job.keep_alive_interval * 3 / 2;
    if (id == but || node.state != MemberState::running || (!node.closed && !overdue)) continue;
    if (++found > kNamed) continue;
    text += (text.empty() ? "" : ", ") +
            (node.closed ? fmt::format("the connection of {} closed", node.info.host)
                         : fmt::format("{} is silent for {} s", node.info.host, whole_seconds(now - node.heard)));
  }
  return found > kNamed ? fmt::format("{} and {} more nodes", text, found - kNamed) : text;
}

// Why a node that says that it is in this round is taken for none of ours.
std::string Membership::why_unknown(Round round) const {
  if (round < round_) return fmt::format("round {} is over: round {} is what counts now", round.value, round_.value);
  if (round == round_ && phase_ == Phase::ended) return fmt::format("the job of round {} has ended", round.value);
  if (round == round_ && phase_ == Phase::forming) return fmt::format("round {} is over", round.value);
  if (round == round_) return fmt::format("the rendezvous runs round {} without this node", round.value);
  return fmt::format("the rendezvous does not know round {}", round.value);
}

// Static jobs know who is missing.
std::string Membership::missing_ranks() const {
  if (config_.backend != RdzvBackend::static_ranks) return "";
  std::set<std::int64_t> here;
  for (const auto& [id, node] : nodes_) {
    if (node.info.node_rank) here.insert(*node.info.node_rank);
  }
  std::string text;
  std::size_t named = 0;
  for (std::int64_t rank = 0; rank < config_.nnodes_max && named < 8; ++rank) {
    if (here.contains(rank)) continue;
    text += (named == 0 ? "" : ", ") + std::to_string(rank);
    ++named;
  }
  return text.empty() ? "" : "; missing: --node-rank " + text;
}

std::string Membership::why_waiting(TimePoint now) const {
  const auto in = [&](TimePoint t) {
    return std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::seconds>(t - now).count());
  };
  if (phase_ == Phase::ended) return "the job has ended: " + result_;
  if (recover_until_ && group_world_size_ == 0) {
    return fmt::format(
        "nodes of an earlier job of this run id may be cut off and still run; {} s left for them to stop",
        in(*recover_until_));
  }
  if (recover_until_) {
    return fmt::format("the rendezvous was restarted: {} of {} nodes of round {} are back, {} s left for the others",
                       group_world_size_ - recover_missing_, group_world_size_, round_.value, in(*recover_until_));
  }
  if (phase_ == Phase::running) {
    if (newcomer_)
      return fmt::format("round {} restarts in {} s to take {} in", round_.value, in(*newcomer_),
                         hosts_of(MemberState::waiting, 8));
    if (count(MemberState::waiting) > 0) {
      return fmt::format("round {} runs with its {} nodes; spare: {}", round_.value, members(),
                         hosts_of(MemberState::waiting, 8));
    }
    return "";
  }
  if (nodes_.empty()) return "no node is here";
  const std::string here =
      fmt::format("{} of {} nodes {} here ({})", available(), range_text(min_nodes(), config_.nnodes_max),
                  available() == 1 ? "is" : "are", hosts_of(MemberState::waiting, 8));
  if (count(MemberState::stopping) > 0) {
    return fmt::format("{}; {} must stop the workers of round {} first", here, hosts_of(MemberState::stopping, 8),
                       round_.value);
  }
  if (!residue_.empty()) {
    return fmt::format("{}; {} nodes of the last job of this run id must stop their workers first", here,
                       residue_.size());
  }
  if (last_call_) return fmt::format("{}; the round closes in {} s", here, in(*last_call_));
  const std::int64_t more = min_nodes() - static_cast<std::int64_t>(available());
  if (more <= 0) return here;
  return fmt::format("{}; at least {} more {} needed{}", here, more, more == 1 ? "is" : "are", missing_ranks());
}

JobStatus Membership::status(TimePoint now) const {
  JobStatus s;
  s.run_id = run_id_;
  s.phase = phase_;
  s.round = round_;
  s.nnodes_min = config_.nnodes_min;
  s.nnodes_max = config_.nnodes_max;
  s.group_world_size = phase_ == Phase::running ? group_world_size_ : 0;
  s.world_size = phase_ == Phase::running ? world_size_ : 0;
  s.restart_count = restart_count_;
  s.max_restarts = config_.max_restarts;
  s.waiting_for = phase_ == Phase::ended ? "" : why_waiting(now);
  s.result = result_;
  s.failures.assign(failure_history_.begin(), failure_history_.end());
  for (const auto& [id, node] : nodes_) {
    NodeStatus n;
    n.node_id = id;
    n.host = node.info.host;
    n.address = node.info.address;
    n.state = node.state;
    n.connected = !node.closed.has_value();
    n.nproc = node.info.nproc;
    n.silent_for = now - node.heard;
    if (node.state != MemberState::waiting && node.in_round == round_) {
      n.group_rank = node.slice.group_rank.value;
      n.first_rank = node.slice.first_rank.value;
    }
    s.nodes.push_back(std::move(n));
  }
  std::stable_sort(s.nodes.begin(), s.nodes.end(), [](const NodeStatus& a, const NodeStatus& b) {
    if ((a.group_rank < 0) != (b.group_rank < 0)) return b.group_rank < 0;
    return a.group_rank < b.group_rank;
  });
  return s;
}

std::vector<rdzv::RosterEntry> Membership::roster() const {
  std::vector<rdzv::RosterEntry> roster;
  roster.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_) {
    rdzv::RosterEntry e;
    e.node_id = id.value;
    e.host = node.info.host;
    e.address = node.info.address;
    e.nproc = node.info.nproc;
    e.state = node.state;
    if (node.state != MemberState::waiting && node.in_round == round_) {
      e.group_rank = node.slice.group_rank.value;
      e.first_rank = node.slice.first_rank.value;
    }
    roster.push_back(std::move(e));
  }
  std::stable_sort(roster.begin(), roster.end(), [](const rdzv::RosterEntry& a, const rdzv::RosterEntry& b) {
    if ((a.group_rank < 0) != (b.group_rank < 0)) return b.group_rank < 0;
    return a.group_rank < b.group_rank;
  });
  return roster;
}

std::string Membership::check() const {
  std::size_t counts[5] = {};
  std::size_t closed_waiting = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranks;  // [first, end)
  for (const auto& [id, node] : nodes_) {
    ++counts[static_cast<std::size_t>(node.state)];
    const bool waiting = node.state == MemberState::waiting;
    if (waiting && node.closed) ++closed_waiting;
    if (!waiting && phase_ != Phase::ended) {
      if (node.in_round != round_)
        return fmt::format("I2: {} is {} but of round {}", id.value, to_word(node.state), node.in_round.value);
      ranks.emplace_back(node.slice.first_rank.value, node.slice.first_rank.value + node.info.nproc);
    }
  }
  for (std::size_t i = 0; i < 5; ++i) {
    if (counts[i] != counts_[i]) return fmt::format("count of state {} is {}, not {}", i, counts_[i], counts[i]);
  }
  if (closed_waiting != closed_waiting_) return "closed_waiting is wrong";
  std::sort(ranks.begin(), ranks.end());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].first < 0 || ranks[i].second > world_size_) return "I1: a rank is outside of the world";
    if (i > 0 && ranks[i].first < ranks[i - 1].second) return "I1: a rank was given twice";
  }
  if (phase_ == Phase::forming && !nodes_.empty() && !next_deadline()) return "I4: a forming round without a deadline";
  if (!nodes_.empty() && !scan_at_) return "I3: nodes without a deadline";
  if (restart_count_ < 0 || restart_count_ > config_.max_restarts) return "I6: restart_count is out of bounds";
  if (phase_ == Phase::ended && !final_) return "I3: ended without a last word";
  return "";
}

}  // namespace ddprun::rendezvous
