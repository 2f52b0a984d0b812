#include "rendezvous/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"

// Bookkeeping and time. Who comes in: membership_entry.cc; who goes, and the verdict: membership_exit.cc; rounds:
// membership_rounds.cc; what is told to people: membership_words.cc.
namespace ddprun::rendezvous {

using rdzv::MemberState;

Membership::Membership(RunId run_id, Round last_round) : run_id_(std::move(run_id)), round_(last_round) {}

std::size_t Membership::members() const {
  return count(MemberState::running) + count(MemberState::finished) + count(MemberState::resumable) +
         count(MemberState::stopping);
}

// A static job has a fixed rank for each of its MAX nodes, so it never runs with fewer.
std::int64_t Membership::min_nodes() const {
  return config_.backend == RdzvBackend::static_ranks ? config_.nnodes_max : config_.nnodes_min;
}

void Membership::look_again_at(TimePoint when) {
  if (!scan_at_ || when < *scan_at_) scan_at_ = when;
}

void Membership::set_state(Node& node, MemberState state) {
  const auto index = [](MemberState s) { return static_cast<std::size_t>(s); };
  if (node.closed && node.state == MemberState::waiting) --closed_waiting_;
  --counts_[index(node.state)];
  node.state = state;
  ++counts_[index(node.state)];
  if (node.closed && node.state == MemberState::waiting) ++closed_waiting_;
}

void Membership::erase(const NodeId& node, const std::string& why) {
  const auto found = nodes_.find(node);
  CHECK(found != nodes_.end(), "erase of an unknown node");
  Node& n = found->second;
  --counts_[static_cast<std::size_t>(n.state)];
  if (n.closed && n.state == MemberState::waiting) --closed_waiting_;
  damped_.erase(node);
  gone_.add(node, why, final_);
  nodes_.erase(found);
}

// Can a node with this slice be a member of the world that we are recovering?
bool Membership::slice_fits(const rdzv::Assignment& slice, std::int64_t nproc) const {
  if (slice.group_world_size != group_world_size_ || slice.world_size != world_size_) return false;
  if (slice.first_rank.value + nproc > world_size_) return false;
  for (const auto& [id, node] : nodes_) {
    if (node.state == MemberState::waiting) continue;
    const std::int64_t first = node.slice.first_rank.value;
    if (slice.first_rank.value < first + node.info.nproc && first < slice.first_rank.value + nproc) return false;
  }
  return true;
}

// The run id is used anew: by the first Join after the job's end, or after all its nodes have gone.
void Membership::start_over() {
  // Members of the ended job that may still have workers: they go first.
  for (const auto& [id, node] : nodes_) {
    outlive(node);
  }
  while (!nodes_.empty()) erase(NodeId(nodes_.begin()->first), "the job had ended");
  phase_ = Phase::forming;
  group_world_size_ = world_size_ = 0;
  restart_count_ = 0;
  reforming_ = departure_ = counted_ = false;
  restart_reason_.clear();
  result_.clear();
  permanent_.clear();
  end_why_.clear();
  suspects_.clear();
  damping_ = Damping();
  final_.reset();
  failures_.clear();
  failure_history_.clear();
  quick_failures_ = 0;
  last_call_.reset();
  newcomer_.reset();
  verdict_.reset();
  recover_missing_ = 0;  // recover_until_ stays: somebody cut off may still run
  scan_at_.reset();
  for (const auto& [id, old] : residue_) look_again_at(old.until);
}

void Membership::wait_for_end_of(const rdzv::NodeInfo& node, TimePoint now) {
  residue_[node.node_id] = Residue{now + lost_after(node), lost_after(node), false};
  look_again_at(now + lost_after(node));
}

// Of an ended job: if this node may have workers, the next round waits for their end.
void Membership::outlive(const Node& node) {
  if (node.state != MemberState::running && node.state != MemberState::stopping) return;
  Residue& old = residue_[node.info.node_id];
  old.lost_after = lost_after(node.info);
  old.closed = node.closed.has_value();
  old.until = node.closed ? *node.closed + kCloseGrace : node.heard + old.lost_after;
  look_again_at(old.until);
}

void Membership::connected_again(Node& node, TimePoint now) {
  node.heard = now;
  if (!node.closed) return;
  if (node.state == MemberState::waiting) --closed_waiting_;
  node.closed.reset();
}

void Membership::forgive(Duration by) {
  const auto later = [&](std::optional<TimePoint>& t) {
    if (t) *t += by;
  };
  for (auto& [id, node] : nodes_) {
    node.heard += by;
    later(node.closed);
    later(node.welcome);
    node.came += by;
    node.join_deadline += by;
  }
  for (auto& [id, old] : residue_) old.until += by;
  later(last_call_);
  later(newcomer_);
  later(verdict_);
  later(recover_until_);
  later(scan_at_);
}

void Membership::expect(const KnownWorld& world, TimePoint now) {
  highest_round_ = std::max(highest_round_, world.round);
  recover_until_ = now + world.lost_after;
  expected_ = true;
  recover_lost_ = world.lost_after;
}

std::optional<KnownWorld> Membership::known_world() const {
  const bool members_may_live = phase_ != Phase::ended && members() > 0;
  const bool ended_ones_may_live = phase_ == Phase::ended && !nodes_.empty();
  if (!members_may_live && !ended_ones_may_live && residue_.empty() && !recover_until_) return std::nullopt;
  KnownWorld world;
  world.run_id = run_id_;
  world.round = std::max(round_, highest_round_);
  // Whoever is here, a world that has not come back, or an older one, may have had longer leases.
  Duration after = nodes_.empty() ? Duration(0) : lost_after();
  if (recover_until_) after = std::max(after, recover_lost_);
  for (const auto& [id, old] : residue_) after = std::max(after, old.lost_after);
  world.lost_after = std::chrono::ceil<std::chrono::milliseconds>(after);
  return world;
}

std::optional<TimePoint> Membership::next_deadline() const {
  std::optional<TimePoint> next;
  for (const auto& t : {last_call_, newcomer_, verdict_, recover_until_, scan_at_}) {
    if (t && (!next || *t < *next)) next = t;
  }
  return next;
}

// Per-node deadlines. scan_at_ is a lower bound of them all, so that a heartbeat costs nothing here.
void Membership::scan(TimePoint now, Actions& out) {
  if (!scan_at_ || now < *scan_at_) return;
  scan_at_.reset();
  std::vector<NodeId> closed, silent, late;
  for (const auto& [id, node] : nodes_) {
    const bool deadline_counts = node.state == MemberState::waiting && phase_ == Phase::forming;
    if (node.closed && now >= *node.closed + kCloseGrace) {
      closed.push_back(id);
    } else if (now >= node.heard + lost_after()) {
      silent.push_back(id);
    } else if (deadline_counts && now >= node.join_deadline) {
      late.push_back(id);
    } else {
      if (node.closed) look_again_at(*node.closed + kCloseGrace);
      look_again_at(node.heard + lost_after());
      if (deadline_counts) look_again_at(node.join_deadline);
    }
  }
  for (auto it = residue_.begin(); it != residue_.end();) {
    if (now >= it->second.until) {
      if (!it->second.closed) out.push_back(Drop{it->first, "is lost: silent after the end of its job"});
      it = residue_.erase(it);
    } else {
      look_again_at(it->second.until);
      ++it;
    }
  }
  for (const NodeId& id : closed) {
    const auto found = nodes_.find(id);
    if (found != nodes_.end() && !found->second.leaving) count_stay(found->second, round_, now, out);
    depart(id, found != nodes_.end() && found->second.leaving ? "has gone" : "is lost: its connection closed", false,
           now, out);
  }
  for (const NodeId& id : silent) {
    if (const auto found = nodes_.find(id); found != nodes_.end()) count_stay(found->second, round_, now, out);
    depart(id, fmt::format("is lost: silent for {} s", whole_seconds(lost_after())), true, now, out);
  }
  // Those that expire now are told about one another as they were, so the sentence is built before any of them goes.
  if (!late.empty() && phase_ == Phase::forming) {
    const rdzv::Shutdown last_word = expiry();
    for (const NodeId& id : late) {
      out.push_back(Send{id, last_word});
      depart(id, "gave up: its join timeout passed", false, now, out);
    }
  }
  if (!nodes_.empty()) look_again_at(now + lost_after());
  try_form(now, out);
}

Actions Membership::tick(TimePoint now) {
  Actions out;
  scan(now, out);
  if (recover_until_ && now >= *recover_until_) {
    recover_until_.reset();
    expected_ = false;
    const std::int64_t missing = recover_missing_;
    recover_missing_ = 0;
    const bool all_done = phase_ == Phase::running && count(MemberState::running) + count(MemberState::stopping) == 0;
    if (phase_ == Phase::running && all_done) {
      check_barrier(now, out);  // the missing ones had been told that the job is over
    } else if (phase_ == Phase::running && missing > 0) {
      departure_ = true;
      begin_restart(fmt::format("{} of {} nodes of round {} did not come back after the rendezvous was restarted",
                                missing, group_world_size_, round_.value),
                    now, out);
    } else {
      try_form(now, out);
    }
  }
  if (verdict_ && now >= *verdict_) {
    // A connection that has just closed may be the loss of which the failure is an echo: its grace comes first.
    for (const auto& [id, node] : nodes_) {
      if (node.closed && node.state != MemberState::waiting) verdict_ = std::max(*verdict_, *node.closed + kCloseGrace);
    }
    if (now >= *verdict_) fail(out);
  }
  if (newcomer_ && now >= *newcomer_) {
    newcomer_.reset();
    const bool ending = count(MemberState::finished) + count(MemberState::resumable) > 0;
    const bool room = static_cast<std::int64_t>(members()) < config_.nnodes_max;
    if (phase_ == Phase::running && available() > 0 && !ending && room) {
      if (steady_waiting(now, false) > 0) {
        begin_restart(fmt::format("{} joins", waiting_hosts(now, 8)), now, out);
      } else {
        for (const NodeId& id : damped_) {
          const Node& node = nodes_.at(id);
          if (node.state != MemberState::waiting || node.closed) continue;
          newcomer_ = std::min(newcomer_.value_or(*node.welcome), *node.welcome);
        }
      }
    }
  }
  if (last_call_ && now >= *last_call_) try_form(now, out);
  if (nodes_.empty() && residue_.empty()) scan_at_.reset();
  return out;
}

}  // namespace ddprun::rendezvous
