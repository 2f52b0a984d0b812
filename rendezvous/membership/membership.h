#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/rdzv_protocol.h"
#include "common/types.h"
#include "rendezvous/membership/damping.h"
#include "rendezvous/membership/known_world.h"
#include "rendezvous/membership/tombstones.h"

namespace ddprun::rendezvous {

struct Send {
  NodeId node;
  rdzv::ServerMessage message;
};
// The node is out: close its connection if there is one.
struct Drop {
  NodeId node;
  std::string why;
};
// For the log and the history of `ddpctl status`: one per change of state.
struct Event {
  std::string text;
};
using Action = std::variant<Send, Drop, Event>;
using Actions = std::vector<Action>;

// A node as operators see it.
struct NodeStatus {
  NodeId node_id;
  std::string host;
  std::string address;
  rdzv::MemberState state = rdzv::MemberState::waiting;
  bool connected = true;
  std::int64_t group_rank = -1;
  std::int64_t first_rank = -1;
  std::int64_t nproc = 0;
  Duration silent_for{};
};

enum class Phase { forming, running, ended };

struct JobStatus {
  RunId run_id;
  Phase phase = Phase::forming;
  Round round;
  std::int64_t nnodes_min = 0, nnodes_max = 0;
  std::int64_t group_world_size = 0, world_size = 0;
  std::int64_t restart_count = 0, max_restarts = 0;
  std::string waiting_for;  // "" = for nothing
  std::string result;       // of an ended job
  std::vector<NodeStatus> nodes;
  std::vector<FailureRecord> failures;  // the last ones, oldest first
};

// One job (run id): who is in which round. Decides; never does: no I/O, no clock, no logging. Same calls, same answers.
//
// A node waits (in the pool), is a member of the round (running, finished, resumable), or stops its workers so that the
// next round can form. One that leaves still has workers: it counts as stopping until its connection closes.
// Invariants, checked by check() after every call in the property test:
//   I1  In the round no rank is given twice: the members' rank intervals are disjoint and lie in 0..world_size-1.
//   I2  Never two live worlds: a new round forms only when every member of the old one has stopped its workers (Join,
//       Done), its connection has closed, or it was silent for T_lost, when its own lease has already ended them.
//   I3  Every waiter is answered: each node in the pool gets an Assignment, Finished or Shutdown, or leaves; while it
//       waits next_deadline() is never empty, except for a spare, which the end of the job or a loss answers.
//   I4  Every round completes or expires: a forming round with nodes in it has a deadline.
//   I5  Bytes: each change sends at most one message per node, and no message grows with the number of nodes.
//   I6  restart_count <= max_restarts, and only a worker failure raises it.
class Membership {
 public:
  // After the connection closed, the agent may come back this long. Below a second: that is when all must know.
  static constexpr auto kCloseGrace = std::chrono::milliseconds(500);
  // T_lost = lease + this. The agent needs at most 3 s of it to end its workers.
  static constexpr auto kLostMargin = std::chrono::seconds(5);
  // How long a failure beyond the budget waits for the loss of which it is an echo.
  static constexpr auto kVerdictWait = std::chrono::milliseconds(500);
  // Newcomers to a running job gather for the shorter of this and the last call, so that ten of them cost one restart.
  static constexpr auto kNewcomerWait = std::chrono::seconds(2);

  // A peer may know of so many rounds that we do not.
  static constexpr std::int64_t kMaxRoundsAhead = 1'000'000;

  // Rounds are numbered from `last_round` + 1.
  explicit Membership(RunId run_id, Round last_round = Round(0));

  Actions on(const rdzv::Join& join, TimePoint now);
  Actions on(const rdzv::Register& registration, TimePoint now);
  Actions on(const NodeId& node, const rdzv::Leave& leave, TimePoint now);
  Actions on(const NodeId& node, const rdzv::Failure& failure, TimePoint now);
  Actions on(const NodeId& node, const rdzv::Done& done, TimePoint now);
  // Any byte of the node.
  void heard(const NodeId& node, TimePoint now);
  // Its connection closed (FIN or RST; not a write that timed out: that is silence).
  Actions disconnected(const NodeId& node, TimePoint now);

  // Operators. `node` is a node id, a host name, an address or, if it is none of them, the group rank of a member.
  // How many nodes are drained; 0: there is no such node.
  std::size_t drain(const std::string& node, const std::string& reason, TimePoint now, Actions& actions);
  Actions stop(const std::string& reason, TimePoint now);

  // What runs out by itself.
  Actions tick(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  // We did not run for `by` (stopped, swapped out): nobody else is to blame for silence meanwhile.
  void forgive(Duration by);
  // Right after the start: a daemon before us knew a world of this run id. No round forms before its nodes have come
  // back or `world.lost_after` has passed.
  void expect(const KnownWorld& world, TimePoint now);
  // What a daemon after us must know; nullopt when no worker of this run id can be alive.
  std::optional<KnownWorld> known_world() const;
  // Where agents of other hosts reach the host of the rendezvous; replaces a loopback address of group rank 0.
  void set_own_address(std::string address) { own_address_ = std::move(address); }

  std::string why_waiting(TimePoint now) const;  // "2 of 4..8 nodes are here (a, b); at least 2 more are needed"
  JobStatus status(TimePoint now) const;
  std::vector<rdzv::RosterEntry> roster() const;  // in the order of ranks, waiting nodes last

  bool empty() const { return nodes_.empty() && residue_.empty() && !recover_until_; }
  Phase phase() const { return phase_; }
  Round round() const { return round_; }
  const RunId& run_id() const { return run_id_; }
  RdzvBackend backend() const { return config_.backend; }
  std::int64_t restart_count() const { return restart_count_; }
  // Since this object was made, for the metrics.
  struct Totals {
    std::uint64_t restarts = 0;  // counted ones, also those that were refunded later
    std::uint64_t failures = 0;  // of workers; one that is told twice counts once
    std::uint64_t departed = 0;  // nodes that left, were drained or lost
  };
  const Totals& totals() const { return totals_; }
  bool knows(const NodeId& node) const { return nodes_.contains(node); }
  std::size_t size() const { return nodes_.size(); }
  std::size_t count(rdzv::MemberState state) const { return counts_[static_cast<std::size_t>(state)]; }

  // The first broken invariant, "" if none. For tests.
  std::string check() const;

 private:
  struct Node {
    rdzv::NodeInfo info;
    rdzv::MemberState state = rdzv::MemberState::waiting;
    std::uint64_t arrival = 0;
    TimePoint came;
    std::optional<TimePoint> welcome;  // nodes of its host come and go: before that no world is begun anew for it
    TimePoint heard;
    std::optional<TimePoint> closed;    // since when the connection is gone
    TimePoint join_deadline;            // of a waiting node, while no world runs
    std::optional<std::int64_t> place;  // group rank in the last round that it was in
    Round in_round;                     // that round
    rdzv::Assignment slice;
    bool leaving = false;  // said so, or was drained: stops its workers, then closes
  };
  // It may still have workers of an earlier world. Counted by its own lease: a run id may be used again with another.
  struct Residue {
    TimePoint until;
    Duration lost_after{};
    bool closed = false;
  };

  std::optional<rdzv::Refused> refusal(const rdzv::NodeInfo& info, bool by_members = false) const;
  void note_round(Round seen);
  void refuse_waiting_ones(TimePoint now, Actions& out);
  Node& add(const rdzv::NodeInfo& info, TimePoint now);
  bool answer_of_ended_job(const rdzv::Join& join, Actions& out);
  bool join_of_known(Node& node, const rdzv::Join& join, TimePoint now, Actions& out);
  void return_of_known(Node& node, const rdzv::Register& registration, TimePoint now, Actions& out);
  void begin_recovery(const rdzv::Register& registration, TimePoint now, Actions& out);
  void take_back(const rdzv::Register& registration, TimePoint now, Actions& out);
  void confirm(const rdzv::Register& registration, bool news, TimePoint now, Actions& out);
  void fence(const NodeId& id, Round round, const std::string& why, Actions& out);
  void wait_for_end_of(const rdzv::NodeInfo& node, TimePoint now);
  void outlive(const Node& node);
  void connected_again(Node& node, TimePoint now);
  void set_state(Node& node, rdzv::MemberState state);
  void erase(const NodeId& node, const std::string& why);
  bool slice_fits(const rdzv::Assignment& slice, std::int64_t nproc) const;
  void start_over();

  void depart(const NodeId& node, const std::string& why, bool close, TimePoint now, Actions& out);
  void leave(const NodeId& node, const std::string& why, TimePoint now, Actions& out);
  void member_went(rdzv::MemberState state, const std::string& host, const std::string& what, TimePoint now,
                   Actions& out);
  void begin_restart(const std::string& reason, TimePoint now, Actions& out);
  void newcomer(const Node& node, TimePoint now, Actions& out);
  Node* who_speaks(const NodeId& id, TimePoint now, Actions& out);
  void add_failure(const FailureRecord& record);
  void judge(const rdzv::Failure& failure, std::string lost, TimePoint now, Actions& out);
  void weigh(const std::string& what, bool permanent, bool quick, TimePoint now, Actions& out);
  void check_barrier(TimePoint now, Actions& out);
  void finish(rdzv::DoneResult result, Actions& out);
  void fail(Actions& out);
  void end(const rdzv::ServerMessage& message, std::string result, Actions& out);
  void try_form(TimePoint now, Actions& out);
  void form(TimePoint now, Actions& out);
  rdzv::Shutdown expiry() const;
  void scan(TimePoint now, Actions& out);
  void look_again_at(TimePoint when);

  std::size_t members() const;
  std::int64_t min_nodes() const;
  static std::string place_of(const rdzv::NodeInfo& info) { return info.host + " (" + info.address + ")"; }
  bool is_steady(const Node& node, TimePoint now) const;
  // Nodes that wait, without (`closed`: those of them whose connection is gone) the ones that are damped.
  std::size_t steady_waiting(TimePoint now, bool closed) const;
  bool without_damped(TimePoint now) const;
  void count_stay(const Node& node, Round round, TimePoint now, Actions& out);
  std::string suspects(const NodeId& but, TimePoint now) const;
  std::string why_unknown(Round round) const;
  std::size_t available() const { return count(rdzv::MemberState::waiting) - closed_waiting_; }
  static std::int64_t whole_seconds(Duration d) { return std::chrono::duration_cast<std::chrono::seconds>(d).count(); }
  static Duration lost_after(const rdzv::NodeInfo& node) { return node.job.lease() + kLostMargin; }
  Duration lost_after() const { return config_.lease() + kLostMargin; }
  std::string hosts_of(rdzv::MemberState state, std::size_t limit) const;
  std::string waiting_hosts(TimePoint now, std::size_t limit) const;
  std::string missing_ranks() const;

  RunId run_id_;
  JobSettings config_;  // as the first node gave them
  std::map<NodeId, Node> nodes_;
  std::size_t counts_[5] = {};
  std::size_t closed_waiting_ = 0;
  std::uint64_t arrivals_ = 0;

  Phase phase_ = Phase::forming;
  Round round_;
  Round highest_round_;  // that a node of this run id has seen
  std::int64_t group_world_size_ = 0, world_size_ = 0;
  std::int64_t restart_count_ = 0;
  bool reforming_ = false;      // a world of this job has run: no last call, whoever is known is waited for
  bool departure_ = false;      // a member of the current round left or was lost
  bool finished_went_ = false;  // a member of it has gone whose workers had all ended with 0
  bool counted_ = false;        // the restart under way was counted and may be refunded
  std::string restart_reason_;
  std::string result_;
  Tombstones::Word final_;
  std::vector<FailureRecord> failures_;        // of the current round
  std::deque<FailureRecord> failure_history_;  // the last ones of the job
  std::int64_t quick_failures_ = 0;            // counted ones in a row that were quick, for the crash loop limit
  std::string permanent_;                      // why no retry can mend what happened in this round
  std::string end_why_;                        // why the last failure ends the job
  std::string no_state_;                       // that, and why, members which are done cannot go on from one state
  std::string suspects_;                       // who seemed lost when it came

  std::optional<TimePoint> last_call_;      // the forming round closes
  std::optional<TimePoint> newcomer_;       // waiting newcomers trigger a new round
  std::optional<TimePoint> verdict_;        // the failures of this round end the job
  std::optional<TimePoint> recover_until_;  // we were restarted: until then members of the old world may come back
  std::int64_t recover_missing_ = 0;
  bool expected_ = false;             // an earlier daemon told of a world, none of whose nodes has come back yet
  Duration recover_lost_{0};          // T_lost of the world that is waited for
  std::optional<TimePoint> scan_at_;  // lower bound of all per-node deadlines

  // Nodes that may still have workers of an earlier world: members of an ended job that have not gone, or whose
  // connection has just closed, members of an old round that have been fenced. No round forms before they are gone or
  // have joined.
  std::map<NodeId, Residue> residue_;
  Tombstones gone_;
  std::string own_address_;
  Damping damping_;
  std::set<NodeId> damped_;  // the nodes that have a `welcome`; few
  Totals totals_;
};

}  // namespace ddprun::rendezvous
