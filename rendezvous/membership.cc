#include "rendezvous/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "rendezvous/rank_order.h"

namespace ddprun::rendezvous {

using rdzv::MemberState;

namespace {

constexpr std::size_t kGoneKept = 65'536;
constexpr std::size_t kFailuresKept = 64;

bool is_loopback_text(std::string_view address) { return address.starts_with("127.") || address == "::1"; }

std::int64_t seconds(Duration d) { return std::chrono::duration_cast<std::chrono::seconds>(d).count(); }

std::string nnodes_text(std::int64_t min, std::int64_t max) {
  return min == max ? std::to_string(min) : fmt::format("{}:{}", min, max);
}

}  // namespace

Membership::Membership(RunId run_id, Round last_round) : run_id_(std::move(run_id)), round_(last_round) {}

std::size_t Membership::members() const {
  return count(MemberState::running) + count(MemberState::finished) + count(MemberState::resumable) +
         count(MemberState::stopping);
}

// A static job has a fixed rank for each of its MAX nodes, so it never runs with fewer.
std::int64_t Membership::min_nodes() const {
  return config_.backend == rdzv::Backend::static_ranks ? config_.nnodes_max : config_.nnodes_min;
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

void Membership::remember(const NodeId& node, Gone gone) {
  gone.number = ++gone_number_;
  gone_order_.emplace_back(node, gone.number);
  gone_.insert_or_assign(node, std::move(gone));
  while (gone_order_.size() > kGoneKept) {
    // A node that went, came and went again has a later entry, which counts.
    const auto& [oldest, number] = gone_order_.front();
    if (const auto found = gone_.find(oldest); found != gone_.end() && found->second.number == number) {
      gone_.erase(found);
    }
    gone_order_.pop_front();
  }
}

void Membership::erase(const NodeId& node, const std::string& why) {
  const auto found = nodes_.find(node);
  CHECK(found != nodes_.end(), "erase of an unknown node");
  Node& n = found->second;
  --counts_[static_cast<std::size_t>(n.state)];
  if (n.closed && n.state == MemberState::waiting) --closed_waiting_;
  Gone gone;
  gone.why = why;
  gone.final = final_;
  remember(node, std::move(gone));
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
    if (node.closed || (node.state != MemberState::running && node.state != MemberState::stopping)) continue;
    residue_[id] = node.heard;
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
  final_.reset();
  failures_.clear();
  quick_failures_ = 0;
  last_call_.reset();
  newcomer_.reset();
  verdict_.reset();
  recover_missing_ = 0;  // recover_until_ stays: somebody cut off may still run
  scan_at_.reset();
  for (const auto& [id, heard_at] : residue_) look_again_at(heard_at + lost_after());
}

// --- who may come in ----------------------------------------------------------------------------------------------

std::optional<rdzv::Refused> Membership::refusal(const rdzv::NodeInfo& info) const {
  rdzv::Refused refused;
  const auto other = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& n) { return n.first != info.node_id; });
  const auto ms = [](std::chrono::milliseconds t) { return fmt::format("{} ms", t.count()); };
  const auto differ = [&](const char* what, const std::string& theirs, const std::string& ours) {
    refused.reason = fmt::format("job {}: {} says {}={}, {} says {}. Start every node with the same value",
                                 run_id_.value, info.host, what, theirs, other->second.info.host, ours);
  };
  if (other != nodes_.end()) {
    const rdzv::NodeInfo& c = config_;
    if (info.backend != c.backend) {
      const auto name = [](rdzv::Backend b) { return b == rdzv::Backend::c10d ? "c10d" : "static"; };
      differ("--rdzv-backend", name(info.backend), name(c.backend));
    } else if (info.nnodes_min != c.nnodes_min || info.nnodes_max != c.nnodes_max) {
      differ("--nnodes", nnodes_text(info.nnodes_min, info.nnodes_max), nnodes_text(c.nnodes_min, c.nnodes_max));
    } else if (info.max_restarts != c.max_restarts) {
      differ("--max-restarts", std::to_string(info.max_restarts), std::to_string(c.max_restarts));
    } else if (info.join_timeout != c.join_timeout) {
      differ("--rdzv-conf join_timeout", ms(info.join_timeout), ms(c.join_timeout));
    } else if (info.last_call_timeout != c.last_call_timeout) {
      differ("--rdzv-conf last_call_timeout", ms(info.last_call_timeout), ms(c.last_call_timeout));
    } else if (info.close_timeout != c.close_timeout) {
      differ("--rdzv-conf close_timeout", ms(info.close_timeout), ms(c.close_timeout));
    } else if (info.keep_alive_interval != c.keep_alive_interval) {
      differ("--rdzv-conf keep_alive_interval", ms(info.keep_alive_interval), ms(c.keep_alive_interval));
    } else if (info.keep_alive_attempts != c.keep_alive_attempts) {
      differ("--rdzv-conf keep_alive_max_attempt", std::to_string(info.keep_alive_attempts),
             std::to_string(c.keep_alive_attempts));
    } else if (info.crash_loop_limit != c.crash_loop_limit || info.crash_loop_window != c.crash_loop_window) {
      differ("the crash loop limit", fmt::format("{} in {}", info.crash_loop_limit, ms(info.crash_loop_window)),
             fmt::format("{} in {}", c.crash_loop_limit, ms(c.crash_loop_window)));
    }
    if (!refused.reason.empty()) return refused;
  }
  if (info.backend != rdzv::Backend::static_ranks) return std::nullopt;
  if (!info.node_rank) {
    refused.reason =
        fmt::format("job {}: {} gave no --node-rank; the static backend needs one", run_id_.value, info.host);
    return refused;
  }
  if (*info.node_rank >= info.nnodes_max) {
    refused.reason = fmt::format("job {}: {} has --node-rank={}, but --nnodes={} allows 0 to {}", run_id_.value,
                                 info.host, *info.node_rank, info.nnodes_max, info.nnodes_max - 1);
    return refused;
  }
  for (const auto& [id, node] : nodes_) {
    if (id == info.node_id || node.info.node_rank != info.node_rank) continue;
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
  if (nodes_.empty()) config_ = info;
  Node& node = nodes_[info.node_id];
  node.info = info;
  node.arrival = ++arrivals_;
  node.heard = now;
  ++counts_[static_cast<std::size_t>(MemberState::waiting)];
  look_again_at(now + lost_after());
  gone_.erase(info.node_id);
  return node;
}

Actions Membership::on(const rdzv::Join& join, TimePoint now) {
  Actions out;
  const NodeId id = join.node.node_id;
  auto known = nodes_.find(id);
  if (phase_ == Phase::ended) {
    if (known != nodes_.end()) {
      out.push_back(Send{id, *final_});
      return out;
    }
    if (const auto gone = gone_.find(id); gone != gone_.end() && gone->second.final && join.last_round == round_) {
      out.push_back(Send{id, *gone->second.final});
      return out;
    }
    start_over();
    known = nodes_.end();
  } else if (const auto gone = gone_.find(id); residue_.contains(id) && gone != gone_.end() && gone->second.final) {
    out.push_back(Send{id, *gone->second.final});  // of the ended job; it missed the word
    return out;
  } else {
    residue_.erase(id);  // it was fenced, and has stopped its workers now
    if (nodes_.empty() && phase_ == Phase::forming && !recover_until_) start_over();  // nothing of the past counts
  }
  if (auto refused = refusal(join.node)) {
    if (known != nodes_.end()) depart(id, "was refused: " + refused->reason, false, now, out);
    out.push_back(Send{id, *refused});
    if (known != nodes_.end()) try_form(now, out);
    return out;
  }

  // A daemon that was restarted must not count from one again: agents know how far they were.
  highest_round_ = std::max(highest_round_, join.last_round);
  std::optional<std::int64_t> place;
  Round in_round;
  if (known != nodes_.end()) {
    Node& node = known->second;
    node.heard = now;
    if (node.closed) {
      if (node.state == MemberState::waiting) --closed_waiting_;
      node.closed.reset();
    }
    const bool member = node.state == MemberState::running || node.state == MemberState::finished ||
                        node.state == MemberState::resumable;
    if (member && join.last_round < round_) {  // the Assignment was lost on the way
      node.info = join.node;
      out.push_back(Send{id, node.slice});
      return out;
    }
    place = node.place;
    in_round = node.in_round;
    if (member) {
      const std::string host = node.info.host;
      depart(id, "stopped its workers because the rendezvous was silent", false, now, out);
      if (phase_ == Phase::ended) {
        out.push_back(Send{id, *final_});
        return out;
      }
    } else {
      set_state(node, MemberState::waiting);
      node.leaving = false;
      node.info = join.node;
      node.join_deadline = now + config_.join_timeout;
      look_again_at(node.join_deadline);
      try_form(now, out);
      return out;
    }
  }
  Node& node = add(join.node, now);
  node.place = place;
  node.in_round = in_round;
  node.join_deadline = now + config_.join_timeout;
  look_again_at(node.join_deadline);
  if (phase_ == Phase::running) {
    newcomer(node, now, out);
  } else {
    try_form(now, out);
  }
  return out;
}

// A newcomer to a running world: takes a free place soon, or is a spare.
void Membership::newcomer(const Node& node, TimePoint now, Actions& out) {
  const bool room = static_cast<std::int64_t>(members()) < config_.nnodes_max;
  const bool ending = count(MemberState::finished) + count(MemberState::resumable) > 0;
  if (room && !ending && !recover_until_ && !verdict_) {
    const bool full = static_cast<std::int64_t>(members() + available()) >= config_.nnodes_max;
    const TimePoint when = full ? now : now + std::min<Duration>(config_.last_call_timeout, kNewcomerWait);
    if (!newcomer_ || when < *newcomer_) newcomer_ = when;
    out.push_back(News{fmt::format("{} waits to join round {}", node.info.host, round_.value)});
    return;
  }
  rdzv::Notice notice;
  notice.kind = rdzv::NoticeKind::spare;
  notice.text = recover_until_
                    ? fmt::format("the rendezvous was restarted and waits for the nodes of round {}", round_.value)
                    : fmt::format("round {} has its {} nodes: this node is a spare and takes over when one is lost",
                                  round_.value, members());
  out.push_back(News{fmt::format("{} is a spare of round {}", node.info.host, round_.value)});
  out.push_back(Send{node.info.node_id, std::move(notice)});
}

Actions Membership::on(const rdzv::Register& registration, TimePoint now) {
  Actions out;
  const NodeId id = registration.node.node_id;
  const Round round = registration.slice.round;
  const auto fence = [&](const std::string& why) {
    rdzv::Restart restart;
    restart.round = round;
    restart.restart_count = restart_count_;
    restart.reason = why;
    out.push_back(Send{id, std::move(restart)});
  };
  // Nobody knows this node, but it may have workers: the next round waits until it has stopped them.
  const auto wait_for_it = [&] {
    residue_[id] = now;
    look_again_at(now + lost_after());
  };
  const auto fence_out = [&](const std::string& why) {
    fence(why);
    wait_for_it();
  };
  const bool done = registration.state == MemberState::finished || registration.state == MemberState::resumable;
  rdzv::Done done_message;
  done_message.round = round;
  done_message.result =
      registration.state == MemberState::resumable ? rdzv::DoneResult::resume_me : rdzv::DoneResult::success;

  if (const auto found = nodes_.find(id); found != nodes_.end()) {
    Node& node = found->second;
    node.heard = now;
    if (node.closed) {
      if (node.state == MemberState::waiting) --closed_waiting_;
      node.closed.reset();
    }
    if (phase_ == Phase::ended) {
      out.push_back(Send{id, *final_});
    } else if (round != round_ || node.state == MemberState::waiting) {
      fence(fmt::format("round {} is over", round.value));
    } else if (phase_ == Phase::forming) {
      fence(restart_reason_);
    } else {
      rdzv::Registered registered;
      registered.round = round_;
      out.push_back(Send{id, registered});
      if (done && node.state == MemberState::running) {
        Actions more = on(id, done_message, now);
        out.insert(out.end(), more.begin(), more.end());
      }
    }
    return out;
  }
  if (const auto gone = gone_.find(id); gone != gone_.end()) {
    if (gone->second.final) {
      out.push_back(Send{id, *gone->second.final});
      wait_for_it();
    } else {
      fence_out(fmt::format("the rendezvous knows that this node {}", gone->second.why));
    }
    return out;
  }
  if (phase_ == Phase::ended && recover_until_ && round == round_) {
    out.push_back(Send{id, *final_});  // it comes back to a world that has been ended meanwhile
    Gone known_end;
    known_end.why = "the job had ended";
    known_end.final = final_;
    remember(id, std::move(known_end));
    wait_for_it();
    return out;
  }
  // Unknown: we were restarted, or it comes from a world that is over.
  const bool virgin = group_world_size_ == 0 && phase_ == Phase::forming && residue_.empty() &&
                      (!recover_until_ || expected_) && round >= std::max(round_, highest_round_);
  // Two daemons that were restarted at different times may have used the same number: then the slices do not fit.
  const bool fits = recover_until_ && recover_missing_ > 0 && phase_ != Phase::ended && round == round_ &&
                    slice_fits(registration.slice, registration.node.nproc);
  highest_round_ = std::max(highest_round_, round);
  if (!virgin && !fits) {
    fence_out(fmt::format("round {} is over: round {} is what counts now", round.value, round_.value));
    return out;
  }
  if (virgin && count(MemberState::waiting) == 0 && nodes_.empty()) start_over();
  if (auto refused = refusal(registration.node)) {
    out.push_back(Send{id, *refused});
    wait_for_it();
    return out;
  }
  if (virgin) {
    expected_ = false;
    phase_ = Phase::running;
    round_ = round;
    group_world_size_ = registration.slice.group_world_size;
    world_size_ = registration.slice.world_size;
    recover_missing_ = group_world_size_;
    if (nodes_.empty()) config_ = registration.node;
    recover_until_ = now + lost_after();
    reforming_ = true;
    last_call_.reset();
    out.push_back(News{fmt::format("nodes of round {} come back after a restart of the rendezvous", round.value)});
  }
  Node& node = add(registration.node, now);
  node.slice = registration.slice;
  node.place = registration.slice.group_rank.value;
  node.in_round = round;
  restart_count_ = std::min(std::max(restart_count_, registration.slice.restart_count), config_.max_restarts);
  set_state(node, phase_ == Phase::running ? MemberState::running : MemberState::stopping);
  --recover_missing_;
  if (recover_missing_ == 0) {
    recover_until_.reset();
    out.push_back(News{fmt::format("all {} nodes of round {} are back", group_world_size_, round_.value)});
    if (phase_ == Phase::running && count(MemberState::waiting) > 0 &&
        static_cast<std::int64_t>(members()) < config_.nnodes_max) {
      newcomer_ = now + std::min<Duration>(config_.last_call_timeout, kNewcomerWait);
    }
  }
  if (phase_ == Phase::forming) {
    fence(restart_reason_);
    return out;
  }
  rdzv::Registered registered;
  registered.round = round_;
  out.push_back(Send{id, registered});
  if (done) {
    Actions more = on(id, done_message, now);
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

// --- who goes -----------------------------------------------------------------------------------------------------

void Membership::heard(const NodeId& node, TimePoint now) {
  if (const auto found = nodes_.find(node); found != nodes_.end()) {
    found->second.heard = std::max(found->second.heard, now);
  } else if (const auto old = residue_.find(node); old != residue_.end()) {
    old->second = std::max(old->second, now);  // of the ended job; it still stops its workers
  }
}

Actions Membership::disconnected(const NodeId& id, TimePoint now) {
  Actions out;
  if (residue_.erase(id) != 0) try_form(now, out);
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || found->second.closed) return out;
  if (phase_ == Phase::ended) {
    erase(id, "the job had ended");
    return out;
  }
  if (found->second.leaving) {  // its workers were stopped before it closed; nobody expects it back
    erase(id, "left");
    try_form(now, out);
    return out;
  }
  found->second.closed = now;
  if (found->second.state == MemberState::waiting) ++closed_waiting_;
  look_again_at(now + kCloseGrace);
  return out;
}

Actions Membership::on(const NodeId& id, const rdzv::Leave& leave, TimePoint now) {
  Actions out;
  // After the job's end: as long as it is connected it may have workers, whatever it says.
  if (!nodes_.contains(id) || phase_ == Phase::ended) return out;
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
    out.push_back(News{what});
    return;
  }
  ++totals_.departed;
  if (state == MemberState::waiting) {
    out.push_back(News{what});
    if (phase_ == Phase::forming && static_cast<std::int64_t>(available()) < min_nodes()) last_call_.reset();
    return;
  }
  member_went(state, host, what, now, out);
}

// What the loss of a member means for the job. The node may still be there, stopping.
void Membership::member_went(MemberState state, const std::string& host, const std::string& what, TimePoint now,
                             Actions& out) {
  out.push_back(News{what});
  if (phase_ == Phase::forming) {
    // It belonged to the round that ends: the failure that ended it was an echo of this loss.
    if (counted_ && restart_count_ > 0) {
      --restart_count_;
      counted_ = false;
      if (quick_failures_ > 0) --quick_failures_;
      out.push_back(News{fmt::format("the last failure is not counted: {} went in the same round", host)});
    }
    return;
  }
  if (state == MemberState::finished) {
    // Its part was done. Others hear of it, nothing else changes.
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

Actions Membership::on(const NodeId& id, const rdzv::Failure& failure, TimePoint now) {
  Actions out;
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return out;
  Node& node = found->second;
  node.heard = std::max(node.heard, now);
  if (phase_ == Phase::ended) {
    out.push_back(Send{id, *final_});
    return out;
  }
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
  judge(failure, now, out);
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
  if (failure_history_.size() > rdzv::kMaxFailures) failure_history_.pop_front();
}

void Membership::judge(const rdzv::Failure& failure, TimePoint now, Actions& out) {
  add_failure(failure.record);
  const std::string what = rdzv::describe(failure.record);
  if (verdict_) {
    out.push_back(News{what});
    return;
  }
  if (departure_) {
    begin_restart(fmt::format("{}; not counted, because a node was lost in this round", what), now, out);
    return;
  }
  std::string end_why;
  const std::int64_t quick_in_a_row = failure.quick ? quick_failures_ + 1 : 0;
  if (failure.permanent) {
    end_why = "a retry cannot mend it";
  } else if (restart_count_ >= config_.max_restarts) {
    end_why = config_.max_restarts == 0 ? "no restarts are allowed"
                                        : fmt::format("all {} restarts are used", config_.max_restarts);
  } else if (config_.crash_loop_limit > 0 && quick_in_a_row >= config_.crash_loop_limit) {
    end_why = fmt::format("a crash loop: {} attempts in a row failed within {} s of their start (crash-loop-limit)",
                          quick_in_a_row, seconds(config_.crash_loop_window));
  }
  if (end_why.empty()) {
    ++restart_count_;
    ++totals_.restarts;
    quick_failures_ = quick_in_a_row;
    counted_ = true;
    begin_restart(fmt::format("{}; restart {} of {}", what, restart_count_, config_.max_restarts), now, out);
    return;
  }
  out.push_back(News{fmt::format("{}; {}", what, end_why)});
  permanent_ = failure.permanent ? end_why : "";
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
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return out;
  Node& node = found->second;
  node.heard = std::max(node.heard, now);
  if (phase_ == Phase::ended) {
    out.push_back(Send{id, *final_});
    return out;
  }
  if (done.round != round_ || phase_ != Phase::running || node.state != MemberState::running) return out;
  set_state(node, done.result == rdzv::DoneResult::success ? MemberState::finished : MemberState::resumable);
  check_barrier(now, out);
  return out;
}

// All living members are done: the job is.
void Membership::check_barrier(TimePoint, Actions& out) {
  if (phase_ != Phase::running || recover_until_ || verdict_) return;
  if (count(MemberState::running) + count(MemberState::stopping) > 0) return;
  if (count(MemberState::finished) + count(MemberState::resumable) == 0) return;
  finish(count(MemberState::resumable) > 0 ? rdzv::DoneResult::resume_me : rdzv::DoneResult::success, out);
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
    if (!end_why_.empty()) shutdown.reason += "; " + end_why_;
  }
  std::string result = "failed: " + shutdown.reason;
  end(shutdown, std::move(result), out);
}

void Membership::end(const rdzv::ServerMessage& message, std::string result, Actions& out) {
  phase_ = Phase::ended;
  final_ = message;
  result_ = std::move(result);
  verdict_.reset();
  newcomer_.reset();
  last_call_.reset();
  out.push_back(News{fmt::format("job ended in round {}: {}", round_.value, result_)});
  std::vector<NodeId> closed;
  for (const auto& [id, node] : nodes_) {
    if (node.closed) {
      closed.push_back(id);
    } else {
      out.push_back(Send{id, message});
    }
  }
  for (const NodeId& id : closed) erase(id, "the job had ended");
}

Actions Membership::stop(const std::string& reason, TimePoint) {
  Actions out;
  if (phase_ == Phase::ended || nodes_.empty()) return out;
  rdzv::Shutdown shutdown;
  shutdown.cause = rdzv::ShutdownCause::stopped;
  shutdown.reason = reason;
  end(shutdown, "stopped: " + reason, out);
  return out;
}

bool Membership::drain(const std::string& node, const std::string& reason, TimePoint now, Actions& actions) {
  std::vector<NodeId> targets;
  for (const auto& [id, n] : nodes_) {
    if (id.value == node || n.info.host == node) targets.push_back(id);
  }
  if (phase_ == Phase::ended || targets.empty()) return false;
  for (const NodeId& id : targets) {
    if (!nodes_.contains(id)) continue;
    rdzv::Shutdown shutdown;
    shutdown.cause = rdzv::ShutdownCause::drained;
    shutdown.reason = reason;
    actions.push_back(Send{id, shutdown});
    leave(id, "was drained: " + reason, now, actions);
  }
  try_form(now, actions);
  return true;
}

// --- rounds -------------------------------------------------------------------------------------------------------

void Membership::begin_restart(const std::string& reason, TimePoint now, Actions& out) {
  phase_ = Phase::forming;
  reforming_ = true;
  restart_reason_ = reason;
  newcomer_.reset();
  verdict_.reset();
  last_call_.reset();
  out.push_back(News{fmt::format("round {} ends: {}", round_.value, reason)});
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
  const auto here = static_cast<std::int64_t>(available());
  if (here < min_nodes() || here == 0) {
    last_call_.reset();
    return;
  }
  if (here >= config_.nnodes_max) {
    form(now, out);
    return;
  }
  if (closed_waiting_ > 0) {  // known within kCloseGrace
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

void Membership::form(TimePoint now, Actions& out) {
  std::vector<Node*> chosen;
  for (auto& [id, node] : nodes_) {
    if (!node.closed) chosen.push_back(&node);
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
    all_loopback = all_loopback && is_loopback_text(node->info.address);
  }
  group_world_size_ = static_cast<std::int64_t>(chosen.size());
  round_ = Round(std::max(round_, highest_round_).value + 1);
  phase_ = Phase::running;
  departure_ = counted_ = false;
  reforming_ = true;
  failures_.clear();
  last_call_.reset();

  const Node& first = *chosen[order.front()];
  Endpoint master{first.info.address, first.info.worker_store_port};
  if (is_loopback_text(master.host) && !all_loopback && !own_address_.empty()) master.host = own_address_;

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
  out.push_back(News{fmt::format("round {} complete: {} nodes, world size {}, restart {} of {}", round_.value,
                                 group_world_size_, world_size_, restart_count_, config_.max_restarts)});
  for (auto& [id, node] : nodes_) {
    if (node.state == MemberState::waiting) newcomer(node, now, out);
  }
}

rdzv::Shutdown Membership::expiry() const {
  rdzv::Shutdown shutdown;
  shutdown.cause = rdzv::ShutdownCause::too_few_nodes;
  const auto limit = seconds(config_.join_timeout);
  const auto here = available();
  const std::string hosts = hosts_of(MemberState::waiting, 8);
  if (count(MemberState::stopping) > 0) {
    shutdown.reason = fmt::format("rendezvous timed out after {} s: {} did not stop the workers of round {}", limit,
                                  hosts_of(MemberState::stopping, 8), round_.value);
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

void Membership::forgive(Duration by) {
  const auto later = [&](std::optional<TimePoint>& t) {
    if (t) *t += by;
  };
  for (auto& [id, node] : nodes_) {
    node.heard += by;
    later(node.closed);
    node.join_deadline += by;
  }
  for (auto& [id, heard_at] : residue_) heard_at += by;
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
  expected_lost_ = world.lost_after;
}

std::optional<KnownWorld> Membership::known_world() const {
  const bool members_may_live = phase_ != Phase::ended && members() > 0;
  const bool ended_ones_may_live = phase_ == Phase::ended && !nodes_.empty();
  if (!members_may_live && !ended_ones_may_live && residue_.empty() && !recover_until_) return std::nullopt;
  KnownWorld world;
  world.run_id = run_id_;
  world.round = std::max(round_, highest_round_);
  // While nobody has come back the values of the job are not known here.
  const Duration after = nodes_.empty() && recover_until_ ? std::max(expected_lost_, lost_after()) : lost_after();
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
    if (now >= it->second + lost_after()) {
      out.push_back(Drop{it->first, "is lost: silent after the end of its job"});
      it = residue_.erase(it);
    } else {
      look_again_at(it->second + lost_after());
      ++it;
    }
  }
  for (const NodeId& id : closed) depart(id, "is lost: its connection closed", false, now, out);
  for (const NodeId& id : silent) {
    depart(id, fmt::format("is lost: silent for {} s", seconds(lost_after())), true, now, out);
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
    if (phase_ == Phase::running && available() > 0 && !ending &&
        static_cast<std::int64_t>(members()) < config_.nnodes_max) {
      begin_restart(fmt::format("{} joins", hosts_of(MemberState::waiting, 8)), now, out);
    }
  }
  if (last_call_ && now >= *last_call_) try_form(now, out);
  if (nodes_.empty() && residue_.empty()) scan_at_.reset();
  return out;
}

}  // namespace ddprun::rendezvous
