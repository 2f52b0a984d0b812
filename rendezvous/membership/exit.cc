// Membership: who goes, what a failure means, and how a job ends.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/membership/membership.h"

namespace ddprun::rendezvous {

using rdzv::MemberState;

namespace {

constexpr std::size_t kFailuresKept = 64;

}  // namespace

// --- who goes -----------------------------------------------------------------------------------------------------

void Membership::heard(const NodeId& node, TimePoint now) {
  if (const auto found = nodes_.find(node); found != nodes_.end()) {
    found->second.heard = std::max(found->second.heard, now);
  } else if (const auto old = residue_.find(node); old != residue_.end()) {
    // Of the ended job; it still stops its workers.
    if (!old->second.closed) old->second.until = std::max(old->second.until, now + old->second.lost_after);
  }
}

Actions Membership::disconnected(const NodeId& id, TimePoint now) {
  Actions out;
  if (const auto old = residue_.find(id); old != residue_.end()) {  // it has the same grace as a member
    old->second.until = now + kCloseGrace;
    old->second.closed = true;
    look_again_at(now + kCloseGrace);
  }
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || found->second.closed) return out;
  found->second.closed = now;
  if (found->second.state == MemberState::waiting) ++closed_waiting_;
  if (phase_ == Phase::ended) {
    outlive(found->second);
    erase(id, "the job had ended");
    return out;
  }
  look_again_at(now + kCloseGrace);
  return out;
}

Actions Membership::on(const NodeId& id, const rdzv::Leave& leave, TimePoint now) {
  Actions out;
  // After the job's end: as long as it is connected it may have workers, whatever it says.
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || phase_ == Phase::ended) return out;
  if (found->second.state == MemberState::running && !found->second.leaving) {
    count_stay(found->second, round_, now, out);
  }
  this->leave(id, "left: " + leave.reason, now, out);
  try_form(now, out);
  return out;
}

// A node goes of its own will. While it has workers it stays a member that stops them: the next round waits for that,
// the others hear of it now.
void Membership::leave(const NodeId& id, const std::string& why, TimePoint now, Actions& out) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || found->second.leaving) return;
  Node& node = found->second;
  if (node.closed || (node.state != MemberState::running && node.state != MemberState::stopping)) {
    depart(id, why, false, now, out);
    return;
  }
  const MemberState before = node.state;
  ++totals_.departed;
  node.leaving = true;
  set_state(node, MemberState::stopping);
  const std::string host = node.info.host;
  member_went(before, host, fmt::format("{} {}", host, why), now, out);
}

// A node is out. `close`: tell the server to close its connection. One that is out already (the end of the job took it
// along) is passed over.
void Membership::depart(const NodeId& id, const std::string& why, bool close, TimePoint now, Actions& out) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const MemberState state = found->second.state;
  const bool was_leaving = found->second.leaving;
  const std::string host = found->second.info.host;
  erase(id, why);
  if (close) out.push_back(Drop{id, why});
  const std::string what = fmt::format("{} {}", host, why);
  if (phase_ == Phase::ended) return;
  if (was_leaving) {
    out.push_back(Event{what});
    return;
  }
  ++totals_.departed;
  if (state == MemberState::waiting) {
    out.push_back(Event{what});
    if (phase_ == Phase::forming && static_cast<std::int64_t>(available()) < min_nodes()) last_call_.reset();
    return;
  }
  member_went(state, host, what, now, out);
}

// What the loss of a member means for the job. The node may still be there, stopping.
void Membership::member_went(MemberState state, const std::string& host, const std::string& what, TimePoint now,
                             Actions& out) {
  out.push_back(Event{what});
  if (phase_ == Phase::forming) {
    // It belonged to the round that ends: the failure that ended it was an echo of this loss.
    if (counted_ && restart_count_ > 0) {
      --restart_count_;
      counted_ = false;
      if (quick_failures_ > 0) --quick_failures_;
      out.push_back(Event{fmt::format("the last failure is not counted: {} went in the same round", host)});
    }
    return;
  }
  if (state == MemberState::finished) {
    // Its part was done. Others hear of it, nothing else changes.
    finished_went_ = true;
    check_barrier(now, out);
    return;
  }
  departure_ = true;
  if (members() == 0 && count(MemberState::waiting) == 0) {
    // Nobody is left to tell. If somebody comes back the job starts anew.
    phase_ = Phase::forming;
    group_world_size_ = world_size_ = 0;
    verdict_.reset();
    newcomer_.reset();
    return;
  }
  if (verdict_ && !permanent_.empty()) return;
  verdict_.reset();
  begin_restart(what, now, out);
}

// --- failures and the end -----------------------------------------------------------------------------------------

// The node that says something; nullptr: it is none of ours, or has been told that the job is over.
Membership::Node* Membership::who_speaks(const NodeId& id, TimePoint now, Actions& out) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return nullptr;
  found->second.heard = std::max(found->second.heard, now);
  if (phase_ != Phase::ended) return &found->second;
  out.push_back(Send{id, *final_});
  return nullptr;
}

Actions Membership::on(const NodeId& id, const rdzv::Failure& failure, TimePoint now) {
  Actions out;
  Node* const speaker = who_speaks(id, now, out);
  if (speaker == nullptr) return out;
  Node& node = *speaker;
  if (failure.record.round != round_ || node.in_round != round_ || node.state == MemberState::waiting) {
    return out;  // of an old round: fenced
  }
  if (phase_ == Phase::forming) {
    add_failure(failure.record);
    rdzv::Restart restart;
    restart.round = round_;
    restart.restart_count = restart_count_;
    restart.reason = restart_reason_;
    out.push_back(Send{id, std::move(restart)});
    return out;
  }
  if (node.state == MemberState::stopping) {  // sent again: after a broken connection, or now with all its evidence
    add_failure(failure.record);
    return out;
  }
  set_state(node, MemberState::stopping);
  judge(failure, verdict_ ? "" : suspects(id, now), now, out);
  return out;
}

// The same failure told again only brings evidence.
void Membership::add_failure(const FailureRecord& record) {
  const auto same = [&](const FailureRecord& f) { return f.round == record.round && f.rank == record.rank; };
  const auto found = std::find_if(failures_.begin(), failures_.end(), same);
  if (found != failures_.end()) {
    const auto first_time = found->unix_time;
    *found = record;
    found->unix_time = first_time;
    return;
  }
  ++totals_.failures;
  if (failures_.size() < kFailuresKept) failures_.push_back(record);
  failure_history_.push_back(record);
  // What status shows; the evidence travels with the last word.
  failure_history_.back().last_lines.clear();
  failure_history_.back().log_paths.clear();
  failure_history_.back().error_file_json.clear();
  if (failure_history_.size() > rdzv::kMaxFailures) failure_history_.pop_front();
}

// `lost`: members that seem to be; what fails then may be an echo of that.
void Membership::judge(const rdzv::Failure& failure, std::string lost, TimePoint now, Actions& out) {
  add_failure(failure.record);
  const std::string what = (lost.empty() ? "" : lost + ", then ") + rdzv::describe(failure.record);
  if (suspects_.empty()) suspects_ = std::move(lost);
  if (verdict_) {
    out.push_back(Event{what});
    return;
  }
  weigh(what, failure.permanent, failure.quick, now, out);
}

// The round has failed because of `what`: another one, or the end of the job?
void Membership::weigh(const std::string& what, bool permanent, bool quick, TimePoint now, Actions& out) {
  if (departure_) {
    begin_restart(fmt::format("{}; not counted, because a node was lost in this round", what), now, out);
    return;
  }
  std::string end_why;
  const std::int64_t quick_in_a_row = quick ? quick_failures_ + 1 : 0;
  if (permanent) {
    end_why = "a retry cannot mend it";
  } else if (restart_count_ >= config_.max_restarts) {
    end_why = config_.max_restarts == 0 ? "no restarts are allowed"
                                        : fmt::format("{0} of {0} restarts are used", config_.max_restarts);
  } else if (config_.crash_loop_limit > 0 && quick_in_a_row >= config_.crash_loop_limit) {
    end_why = fmt::format("a crash loop: {} attempts in a row failed within {} s of their start (crash-loop-limit)",
                          quick_in_a_row, whole_seconds(config_.crash_loop_window));
  }
  if (end_why.empty()) {
    ++restart_count_;
    ++totals_.restarts;
    quick_failures_ = quick_in_a_row;
    counted_ = true;
    begin_restart(fmt::format("{}; restart {} of {}", what, restart_count_, config_.max_restarts), now, out);
    return;
  }
  out.push_back(Event{fmt::format("{}; {}", what, end_why)});
  permanent_ = permanent ? end_why : "";
  end_why_ = config_.max_restarts == 0 ? "" : std::move(end_why);
  // With one node there is no other whose loss could be the reason.
  if (members() == 1) {
    fail(out);
  } else {
    verdict_ = now + kVerdictWait;
  }
}

Actions Membership::on(const NodeId& id, const rdzv::Done& done, TimePoint now) {
  Actions out;
  Node* const speaker = who_speaks(id, now, out);
  if (speaker == nullptr) return out;
  Node& node = *speaker;
  if (done.round != round_ || phase_ != Phase::running || node.state != MemberState::running) return out;
  set_state(node, done.result == rdzv::DoneResult::success ? MemberState::finished : MemberState::resumable);
  check_barrier(now, out);
  return out;
}

// All living members are done: the job is, unless some have saved a state to go on from, and others have ended the
// work.
void Membership::check_barrier(TimePoint now, Actions& out) {
  if (phase_ != Phase::running || recover_until_ || verdict_) return;
  if (count(MemberState::running) + count(MemberState::stopping) > 0) return;
  const std::size_t finished = count(MemberState::finished), resumable = count(MemberState::resumable);
  if (finished + resumable == 0) return;
  if (resumable == 0) return finish(rdzv::DoneResult::success, out);
  if (finished == 0 && !finished_went_) return finish(rdzv::DoneResult::resume_me, out);
  const auto nodes = [this](MemberState state) {  // two may be on one host
    const std::size_t n = count(state);
    return fmt::format("{} {} ({})", n, n == 1 ? "node" : "nodes", hosts_of(state, 4));
  };
  no_state_ = fmt::format(
      "the workers of {} ended with 75 (state saved), those of {} with 0: there is no state that all can resume from",
      nodes(MemberState::resumable), finished > 0 ? nodes(MemberState::finished) : "nodes that have gone");
  weigh(no_state_, false, false, now, out);
}

void Membership::finish(rdzv::DoneResult result, Actions& out) {
  rdzv::Finished finished;
  finished.result = result;
  end(finished, result == rdzv::DoneResult::success ? "success" : "resume me (75)", out);
}

void Membership::fail(Actions& out) {
  std::stable_sort(failures_.begin(), failures_.end(),
                   [](const FailureRecord& a, const FailureRecord& b) { return a.unix_time < b.unix_time; });
  rdzv::Shutdown shutdown;
  shutdown.cause = rdzv::ShutdownCause::worker_failure;
  std::size_t root = 0;
  while (root < failures_.size() && failures_[root].stopped_by_us) ++root;
  if (root == failures_.size()) root = 0;
  if (failures_.size() > rdzv::kMaxFailures) {
    // The root cause comes first by time unless all before it are echoes; keep it within what travels.
    std::rotate(failures_.begin(), failures_.begin() + static_cast<std::ptrdiff_t>(root), failures_.end());
    root = 0;
    failures_.resize(rdzv::kMaxFailures);
  }
  shutdown.failures = failures_;
  if (!failures_.empty()) {
    shutdown.root = static_cast<std::uint32_t>(root);
    shutdown.reason = rdzv::describe(failures_[root]);
    if (!suspects_.empty()) shutdown.reason = suspects_ + ", then " + shutdown.reason;
  } else {
    shutdown.reason = no_state_;
  }
  if (!end_why_.empty()) shutdown.reason += "; " + end_why_;
  std::string result = "failed: " + shutdown.reason;
  end(shutdown, std::move(result), out);
}

void Membership::end(const rdzv::ServerMessage& message, std::string result, Actions& out) {
  const Phase phase = std::exchange(phase_, Phase::ended);
  final_ = std::make_shared<const rdzv::ServerMessage>(message);
  failures_.clear();
  result_ = std::move(result);
  verdict_.reset();
  newcomer_.reset();
  last_call_.reset();
  out.push_back(Event{phase == Phase::forming ? fmt::format("job ended while no round ran: {}", result_)
                                              : fmt::format("job ended in round {}: {}", round_.value, result_)});
  std::vector<NodeId> closed;
  for (const auto& [id, node] : nodes_) {
    if (node.closed) {
      closed.push_back(id);
    } else {
      out.push_back(Send{id, message});
    }
  }
  for (const NodeId& id : closed) {
    outlive(nodes_.at(id));
    erase(id, "the job had ended");
  }
}

Actions Membership::stop(const std::string& reason, TimePoint) {
  Actions out;
  if (phase_ == Phase::ended || nodes_.empty()) return out;
  rdzv::Shutdown shutdown;
  shutdown.cause = rdzv::ShutdownCause::stopped;
  shutdown.reason = reason;
  end(shutdown, reason, out);
  return out;
}

std::size_t Membership::drain(const std::string& node, const std::string& reason, TimePoint now, Actions& actions) {
  std::vector<NodeId> targets, ranked;
  for (const auto& [id, n] : nodes_) {
    if (id.value == node || n.info.host == node || n.info.address == node) {
      targets.push_back(id);
    } else if (n.state != MemberState::waiting && n.in_round == round_ &&
               std::to_string(n.slice.group_rank.value) == node) {
      ranked.push_back(id);
    }
  }
  if (targets.empty()) targets = std::move(ranked);
  if (phase_ == Phase::ended || targets.empty()) return 0;
  for (const NodeId& id : targets) {
    if (!nodes_.contains(id)) continue;
    rdzv::Shutdown shutdown;
    shutdown.cause = rdzv::ShutdownCause::drained;
    shutdown.reason = reason;
    actions.push_back(Send{id, shutdown});
    leave(id, "was " + reason, now, actions);
  }
  try_form(now, actions);
  return targets.size();
}

}  // namespace ddprun::rendezvous
