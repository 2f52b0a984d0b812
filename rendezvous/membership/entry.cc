// Membership: who may come in, by Join, and who comes back, by Register.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/membership/membership.h"

namespace ddprun::rendezvous {

using rdzv::MemberState;

// `by_members`: only members of the round may be the reason, not those that wait.
std::optional<rdzv::Refused> Membership::refusal(const rdzv::NodeInfo& info, bool by_members) const {
  rdzv::Refused refused;
  const auto is_member = [&](const auto& n) {
    return n.first != info.node_id && n.second.state != MemberState::waiting;
  };
  // What a member says is what counts, so it is the one to name.
  auto other = members() > 0 ? std::find_if(nodes_.begin(), nodes_.end(), is_member) : nodes_.end();
  if (other == nodes_.end() && !by_members) {
    other = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& n) { return n.first != info.node_id; });
  }
  if (other != nodes_.end()) {
    if (const auto differ = first_difference(info.job, config_)) {
      const rdzv::NodeInfo& first = other->second.info;
      const auto name = [&](const rdzv::NodeInfo& node) {  // of one host: which of the two
        return info.host == first.host ? fmt::format("{} (node {:.8})", node.host, node.node_id.value) : node.host;
      };
      refused.reason = fmt::format("job {}: {} says {}={}, {} says {}. Start every node with the same value",
                                   run_id_.value, name(info), differ->option, differ->left, name(first), differ->right);
      return refused;
    }
  }
  if (info.job.backend != RdzvBackend::static_ranks) return std::nullopt;
  if (!info.node_rank) {
    refused.reason =
        fmt::format("job {}: {} gave no --node-rank; the static backend needs one", run_id_.value, info.host);
    return refused;
  }
  if (*info.node_rank >= info.job.nnodes_max) {
    refused.reason = fmt::format("job {}: {} has --node-rank={}, but --nnodes={} allows 0 to {}", run_id_.value,
                                 info.host, *info.node_rank, info.job.nnodes_max, info.job.nnodes_max - 1);
    return refused;
  }
  for (const auto& [id, node] : nodes_) {
    if (id == info.node_id || node.info.node_rank != info.node_rank) continue;
    if (by_members && node.state == MemberState::waiting) continue;
    // Its own predecessor may be gone in a moment (connection closed, or the host was restarted).
    refused.retry = node.closed.has_value() || node.info.host == info.host;
    refused.reason =
        fmt::format("job {}: --node-rank={} is taken by {} ({}); {} ({}) asks for it too. Give each node its own",
                    run_id_.value, *info.node_rank, node.info.host, node.info.address, info.host, info.address);
    return refused;
  }
  return std::nullopt;
}

Membership::Node& Membership::add(const rdzv::NodeInfo& info, TimePoint now) {
  if (nodes_.empty()) config_ = info.job;
  Node& node = nodes_[info.node_id];
  node.info = info;
  node.arrival = ++arrivals_;
  node.came = now;
  node.heard = now;
  ++counts_[static_cast<std::size_t>(MemberState::waiting)];
  look_again_at(now + lost_after());
  gone_.erase(info.node_id);
  return node;
}

Actions Membership::on(const rdzv::Join& join, TimePoint now) {
  Actions out;
  const NodeId id = join.node.node_id;
  if (answer_of_ended_job(join, out)) return out;
  if (auto refused = refusal(join.node)) {
    const bool was_known = nodes_.contains(id);
    if (was_known) {
      depart(id, "was refused: " + refused->reason, false, now, out);
    } else if (!refused->retry) {
      out.push_back(Event{fmt::format("refused {}: {}", join.node.host, refused->reason)});
    }
    out.push_back(Send{id, *refused});
    if (was_known) try_form(now, out);
    return out;
  }
  note_round(join.last_round);
  std::optional<std::int64_t> place;
  Round in_round;
  if (const auto known = nodes_.find(id); known != nodes_.end()) {
    place = known->second.place;
    in_round = known->second.in_round;
    if (join_of_known(known->second, join, now, out)) return out;
  }
  Node& node = add(join.node, now);
  node.place = place;
  node.in_round = in_round;
  node.join_deadline = now + config_.join_timeout;
  look_again_at(node.join_deadline);
  if (const Duration wait = damping_.patience(place_of(node.info), now); wait.count() > 0) {
    node.welcome = now + wait;
    damped_.insert(id);
    look_again_at(*node.welcome);
  }
  if (phase_ == Phase::running) {
    newcomer(node, now, out);
  } else {
    try_form(now, out);
  }
  return out;
}

// A daemon that was restarted must not count from one again. A peer that lies must not use the numbers up either: no
// daemon lives so long that its rounds come near kMaxRoundsAhead.
void Membership::note_round(Round seen) {
  const std::int64_t here = std::max(round_, highest_round_).value;
  highest_round_ = Round(std::max(here, std::min(seen.value, here + kMaxRoundsAhead)));
}

// True: the Join is of a node of a job that has ended, and has its answer. Else whatever has ended is behind us.
bool Membership::answer_of_ended_job(const rdzv::Join& join, Actions& out) {
  const NodeId& id = join.node.node_id;
  const auto* const gone = gone_.find(id);
  const bool has_final = gone != nullptr && gone->final;
  if (phase_ == Phase::ended) {
    if (nodes_.contains(id)) {
      out.push_back(Send{id, *final_});
      return true;
    }
    if (has_final && join.last_round == round_) {
      out.push_back(Send{id, *gone->final});
      return true;
    }
    start_over();
    out.push_back(Event{"a new job of this run id begins"});
    return false;
  }
  if (residue_.contains(id) && has_final) {
    out.push_back(Send{id, *gone->final});  // it missed the word
    return true;
  }
  residue_.erase(id);  // it was fenced, and has stopped its workers now
  if (nodes_.empty() && phase_ == Phase::forming && !recover_until_) start_over();  // nothing of the past counts
  return false;
}

// True: that was all. False: it was a member that has stopped its workers by itself; it is out, and comes in anew.
bool Membership::join_of_known(Node& node, const rdzv::Join& join, TimePoint now, Actions& out) {
  const NodeId id = join.node.node_id;
  connected_again(node, now);
  const bool member =
      node.state == MemberState::running || node.state == MemberState::finished || node.state == MemberState::resumable;
  if (!member) {
    set_state(node, MemberState::waiting);
    node.leaving = false;
    node.info = join.node;
    node.join_deadline = now + config_.join_timeout;
    look_again_at(node.join_deadline);
    try_form(now, out);
    return true;
  }
  if (join.last_round < round_) {  // the Assignment was lost on the way
    node.info = join.node;
    out.push_back(Send{id, node.slice});
    return true;
  }
  depart(id, "ended its workers, because its lease was over", false, now, out);
  if (phase_ != Phase::ended) return false;
  out.push_back(Send{id, *final_});
  return true;
}

// A newcomer to a running world: takes a free place soon, or is a spare.
void Membership::newcomer(const Node& node, TimePoint now, Actions& out) {
  const bool room = static_cast<std::int64_t>(members()) < config_.nnodes_max;
  const bool ending = count(MemberState::finished) + count(MemberState::resumable) > 0;
  if (room && !ending && !recover_until_ && !verdict_) {
    const bool full = static_cast<std::int64_t>(members() + available()) >= config_.nnodes_max;
    TimePoint when = full ? now : now + std::min<Duration>(config_.last_call_timeout, kNewcomerWait);
    const bool damped = !is_steady(node, now);
    if (damped) when = std::max(when, *node.welcome);
    if (!newcomer_ || when < *newcomer_) newcomer_ = when;
    const auto wait = std::chrono::ceil<std::chrono::seconds>(when - now).count();
    const std::string text = fmt::format("{} is here: round {} ends {} to take it in", node.info.host, round_.value,
                                         wait == 0 ? "now" : fmt::format("in {} s at the latest", wait));
    out.push_back(Event{text});
    if (damped) {
      rdzv::Notice notice;
      notice.kind = rdzv::NoticeKind::newcomer;
      notice.text = fmt::format("nodes of {} came and went: if this one stays, round {} ends in {} s to take it in",
                                node.info.host, round_.value, wait);
      out.push_back(Send{node.info.node_id, std::move(notice)});
    }
    return;
  }
  rdzv::Notice notice;
  notice.kind = recover_until_ ? rdzv::NoticeKind::newcomer : rdzv::NoticeKind::spare;
  notice.text = recover_until_
                    ? fmt::format("the rendezvous was restarted and waits for the nodes of round {}", round_.value)
                    : fmt::format(
                          "run id '{}' already runs: round {} has its {} {} ({}). This node is a spare and takes over "
                          "when one is lost; if it was to run another job, give that its own --rdzv-id",
                          run_id_.value, round_.value, members(), members() == 1 ? "node" : "nodes",
                          hosts_of(MemberState::running, 3));
  out.push_back(Event{fmt::format("{} is a spare of round {}", node.info.host, round_.value)});
  out.push_back(Send{node.info.node_id, std::move(notice)});
}

// --- who comes back -----------------------------------------------------------------------------------------------

Actions Membership::on(const rdzv::Register& registration, TimePoint now) {
  Actions out;
  const NodeId id = registration.node.node_id;
  const Round round = registration.slice.round;
  if (const auto found = nodes_.find(id); found != nodes_.end()) {
    return_of_known(found->second, registration, now, out);
    return out;
  }
  // Nobody counts on this node, but it may have workers: the next round waits until it has stopped them.
  if (const auto* const gone = gone_.find(id); gone != nullptr) {
    if (gone->final) {
      out.push_back(Send{id, *gone->final});
    } else {
      fence(id, round, fmt::format("the rendezvous knows that this node {}", *gone->why), out);
    }
    wait_for_end_of(registration.node, now);
    return out;
  }
  if (phase_ == Phase::ended && recover_until_ && round == round_) {
    out.push_back(Send{id, *final_});  // it comes back to a world that has been ended meanwhile
    gone_.add(id, "the job had ended", final_);
    wait_for_end_of(registration.node, now);
    return out;
  }
  // Unknown: we were restarted, or it comes from a world that is over.
  const bool first = group_world_size_ == 0 && phase_ == Phase::forming &&
                     (expected_ || (residue_.empty() && !recover_until_)) &&
                     round >= std::max(round_, highest_round_) &&
                     round.value <= std::max(round_, highest_round_).value + kMaxRoundsAhead;
  // Two daemons that were restarted at different times may have used the same number: then the slices do not fit.
  const bool fits = recover_until_ && recover_missing_ > 0 && phase_ != Phase::ended && round == round_ &&
                    slice_fits(registration.slice, registration.node.nproc);
  note_round(round);
  if (!first && !fits) {
    fence(id, round, why_unknown(round), out);
    wait_for_end_of(registration.node, now);
    return out;
  }
  if (first && nodes_.empty()) start_over();
  // Its workers run: against those that only wait it is right, whoever came first.
  if (auto refused = refusal(registration.node, true)) {
    out.push_back(Send{id, *refused});
    wait_for_end_of(registration.node, now);
    return out;
  }
  if (first) begin_recovery(registration, now, out);
  take_back(registration, now, out);
  refuse_waiting_ones(now, out);
  return out;
}

// A member has come back: newcomers that were taken before, and disagree with it, must go.
void Membership::refuse_waiting_ones(TimePoint now, Actions& out) {
  std::vector<std::pair<NodeId, rdzv::Refused>> refused;
  for (const auto& [id, node] : nodes_) {
    if (node.state != MemberState::waiting) continue;
    if (auto why = refusal(node.info, true)) refused.emplace_back(id, std::move(*why));
  }
  for (auto& [id, why] : refused) {
    const std::string reason = "was refused: " + why.reason;
    out.push_back(Send{id, std::move(why)});
    depart(id, reason, false, now, out);
  }
}

// Another world than the one of this round is over for that node: it stops its workers and joins.
void Membership::fence(const NodeId& id, Round round, const std::string& why, Actions& out) {
  rdzv::Restart restart;
  restart.round = round;
  restart.restart_count = restart_count_;
  restart.reason = why;
  out.push_back(Send{id, std::move(restart)});
}

// After a broken connection.
void Membership::return_of_known(Node& node, const rdzv::Register& registration, TimePoint now, Actions& out) {
  const NodeId id = registration.node.node_id;
  const Round round = registration.slice.round;
  connected_again(node, now);
  if (phase_ == Phase::ended) {
    out.push_back(Send{id, *final_});
  } else if (round != round_ || node.state == MemberState::waiting) {
    fence(id, round,
          round != round_ ? fmt::format("round {} is over", round.value)
                          : fmt::format("this node waits, and is no member of round {}", round.value),
          out);
  } else if (phase_ == Phase::forming) {
    fence(id, round, restart_reason_, out);
  } else {
    confirm(registration, node.state == MemberState::running, now, out);
  }
}

// It is a member; `news`: if it says that its workers are done, that was not known.
void Membership::confirm(const rdzv::Register& registration, bool news, TimePoint now, Actions& out) {
  rdzv::Registered registered;
  registered.round = round_;
  out.push_back(Send{registration.node.node_id, registered});
  const bool resumable = registration.state == MemberState::resumable;
  if (!news || (registration.state != MemberState::finished && !resumable)) return;
  rdzv::Done done;
  done.round = round_;
  done.result = resumable ? rdzv::DoneResult::resume_me : rdzv::DoneResult::success;
  Actions more = on(registration.node.node_id, done, now);
  out.insert(out.end(), more.begin(), more.end());
}

// The first member of a world that an earlier daemon formed.
void Membership::begin_recovery(const rdzv::Register& registration, TimePoint now, Actions& out) {
  expected_ = false;
  phase_ = Phase::running;
  round_ = registration.slice.round;
  group_world_size_ = registration.slice.group_world_size;
  world_size_ = registration.slice.world_size;
  recover_missing_ = group_world_size_;
  config_ = registration.node.job;  // a running world has the say, whoever waits already
  recover_lost_ = std::max<Duration>(recover_until_ ? recover_lost_ : Duration(0), lost_after());
  recover_until_ = std::max(recover_until_.value_or(now), now + lost_after());
  reforming_ = true;
  last_call_.reset();
  out.push_back(Event{fmt::format("nodes of round {} come back after a restart of the rendezvous", round_.value)});
}

void Membership::take_back(const rdzv::Register& registration, TimePoint now, Actions& out) {
  Node& node = add(registration.node, now);
  node.slice = registration.slice;
  node.place = registration.slice.group_rank.value;
  node.in_round = round_;
  restart_count_ = std::min(std::max(restart_count_, registration.slice.restart_count), config_.max_restarts);
  set_state(node, phase_ == Phase::running ? MemberState::running : MemberState::stopping);
  --recover_missing_;
  if (recover_missing_ == 0) {
    recover_until_.reset();
    out.push_back(Event{fmt::format("all {} nodes of round {} are back", group_world_size_, round_.value)});
    if (phase_ == Phase::running && count(MemberState::waiting) > 0 &&
        static_cast<std::int64_t>(members()) < config_.nnodes_max) {
      newcomer_ = now + std::min<Duration>(config_.last_call_timeout, kNewcomerWait);
    }
  }
  if (phase_ == Phase::forming) {
    fence(registration.node.node_id, round_, restart_reason_, out);
  } else {
    confirm(registration, true, now, out);
  }
}

}  // namespace ddprun::rendezvous
