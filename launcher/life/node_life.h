#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/rdzv_protocol.h"
#include "common/signal_names.h"
#include "common/types.h"
#include "launcher/life/job_outcome.h"
#include "launcher/life/node_options.h"
#include "launcher/life/worker_tally.h"

// The life of one node, from its first Join to the end of the job, as a pure machine: events and the time in, actions
// out. It decides and never does: no I/O, no clock, no log. agent.cc turns events into calls and actions into deeds.
//
//              Assignment          pause over        verdict, failure, signal       all ended, output out
//   joining ----------------> starting ------> running ----------------> stopping -------------> waiting
//      ^  ^                      |                                          |                       |
//      |  +------- again --------+------------------- again ----------------+-------- again --------+
//      +--- (each phase may also end the job: ended)
//
// Each phase owns its data and its deadlines, so a deadline of a phase that is over cannot exist.
namespace ddprun::launcher {

// --- events -----------------------------------------------------------------------------------------------------

// The state of our connection to the rendezvous. "Of use": the rendezvous said something about us on it.
struct Link {
  std::optional<TimePoint> useless_since;  // nullopt: a connection of use exists
  TimePoint useful;                        // when the last message of use came
  bool embedded = false;                   // another node's launcher serves it
  std::string problem;                     // why there is no connection
};
struct JoinFailed {  // the port for the workers' store cannot be had
  std::string why;
};
struct RoundAccepted {
  Round round;
};
struct WorkersStarted {
  Round round;
};
struct StartFailed {  // of the store or the workers; nothing of them is left
  Round round;
  std::string why;
  int exit_code = 0;
  bool permanent = false;  // a retry cannot mend it
};
struct WorkerEnded {
  Round round;  // of its attempt
  WorkerEnd end;
  bool after_guard = false;  // this process had not run for so long that its guard was to kill the workers
};
struct WorkersDrained {  // no process of the attempt is left, its output is out
  Round round;
};
struct LeaseOver {};  // nothing proves any more that the rendezvous lives
struct Hopeless {     // whoever serves the endpoint will never talk to us
  std::string why;
};
struct StopRequest {  // a signal told us to stop; a second one means: now
  int signal = 0;
};
struct Paused {  // this process did not run for so long until now; nobody's time is to be counted
  Duration gap{};
};
using NodeEvent = std::variant<rdzv::ServerMessage, Link, JoinFailed, RoundAccepted, WorkersStarted, StartFailed,
                               WorkerEnded, WorkersDrained, LeaseOver, Hopeless, StopRequest, Paused>;

// --- actions ----------------------------------------------------------------------------------------------------

struct BindAndJoin {  // bind the workers' store, ask for a place in the next round. Fails by JoinFailed
  Round last_round;
  bool again = false;  // the port is bound already
};
struct AcceptRound {  // serve the store if it is ours, be a member. Answered by RoundAccepted or StartFailed
  rdzv::Assignment assignment;
};
struct StartWorkers {  // answered by WorkersStarted or StartFailed
  rdzv::Assignment assignment;
  std::vector<LocalRank> workers;
};
struct AskToStop {
  LocalRank worker;
  int signal = 0;
  SignalScope scope = SignalScope::worker;
};
struct Kill {
  LocalRank worker;
};
struct DrainWorkers {};  // no more starts in this attempt; WorkersDrained when nothing of it is left
struct HurryDrain {};    // no more patience with helpers and with a slow console
struct EndHelpers {      // --leftovers=wait is over in this attempt; 0: no signal asks them to
  int signal = 0;
};
struct TellDone {
  rdzv::DoneResult result = rdzv::DoneResult::success;
};
struct TellFailure {  // the agent adds the evidence
  FailureRecord record;
  bool permanent = false;
  bool quick = false;
  TimePoint at;
};
struct TellLeave {
  std::string reason;
};
struct Say {
  enum class Tone { info, warning, error };
  Tone tone = Tone::info;
  std::string text;
};
struct End {  // the last action
  JobOutcome outcome;
};
using NodeAction = std::variant<BindAndJoin, AcceptRound, StartWorkers, AskToStop, Kill, DrainWorkers, HurryDrain,
                                EndHelpers, TellDone, TellFailure, TellLeave, Say, End>;
using NodeActions = std::vector<NodeAction>;

// --- the machine ------------------------------------------------------------------------------------------------

// Limits that are no options. A worker that SIGKILL does not end (stuck in the kernel), and output that nobody takes,
// hold a node up no longer than this.
inline constexpr std::chrono::seconds kKillLimit{
    40};  // from SIGKILL to the end of all workers; the group's own is 30 s
inline constexpr std::chrono::seconds kDrainLimit{60};  // from the last worker's end to HurryDrain, at least
// What a wrapper ran has shutdown_timeout from the wrapper's end on, and then some time to be killed and read out.
inline constexpr std::chrono::seconds kDrainMargin{15};
inline constexpr std::chrono::seconds kHurryLimit{20};  // from HurryDrain to going on without it
inline constexpr std::chrono::seconds kStartLimit{60};  // for each step of a start
inline constexpr std::chrono::seconds kSayEarly{10};    // a worker ended with 0 and others run on: said after this
inline constexpr std::chrono::milliseconds kSilencePatience{3'000};  // for workers when the lease is over
inline constexpr std::chrono::milliseconds kRefusedRetry{1'000};

class NodeLife {
 public:
  // `host`: our name in failure records.
  NodeLife(NodeOptions options, std::string host);

  NodeActions begin(TimePoint now);  // once
  NodeActions on(const NodeEvent& event, TimePoint now);
  // At or after next_deadline(). Before it: changes nothing.
  NodeActions tick(TimePoint now);
  // When tick() has something to do. Always in the future of the last call, or nullopt: only a worker that runs (or a
  // helper that the user wants to be waited for) can bring the next event.
  std::optional<TimePoint> next_deadline() const;

  std::string_view phase() const;  // "joining", "starting", ...
  bool ended() const { return std::holds_alternative<Ended>(phase_); }
  bool joining() const { return std::holds_alternative<Joining>(phase_); }
  // Between StartWorkers and WorkersDrained: somebody else has to end the workers if this process cannot. Not for what
  // workers that are done have left (an upload).
  bool workers_may_live() const;
  // The longest time from a StopRequest to End, whatever the workers, the rendezvous and the console do.
  std::chrono::milliseconds stop_bound() const;

 private:
  struct Again {};
  using Verdict = std::variant<Again, JobOutcome>;
  struct OwnFailure {
    FailureRecord record;
    bool permanent = false;
    TimePoint at;
  };
  // One accepted round; goes from phase to phase.
  struct Attempt {
    Attempt(rdzv::Assignment a, std::int64_t nproc) : assignment(std::move(a)), tally(nproc) {}
    rdzv::Assignment assignment;
    WorkerTally tally;
    std::optional<TimePoint> started_at;  // nullopt: no worker was started
    std::optional<OwnFailure> failure;
    std::optional<rdzv::DoneResult> done;
    bool told_done = false;
    TimePoint told_at;  // when the rendezvous heard of `failure` or `done`
    std::vector<std::string> notes;
  };

  struct Fresh {};
  struct Joining {
    TimePoint since;
    std::optional<TimePoint> again_at;
    std::string refused;  // what counts now: a refusal that time may change
    bool said_refused = false;
  };
  struct Starting {
    enum class Step {
      accepting,  // AcceptRound is under way. Deadline: kStartLimit
      pausing,    // --restart-backoff. Deadline: its end
      starting,   // StartWorkers is under way. Deadline: kStartLimit
    };
    Attempt attempt;
    Step step = Step::accepting;
    TimePoint deadline;
  };
  struct Running {
    Attempt attempt;
    std::optional<TimePoint> follow_by;  // one ended with 75: the others have until then
    std::optional<TimePoint> say_early_at;
    bool said_early = false;
  };
  struct Stopping {
    enum class Step {
      asked,        // deadline: half of the patience, then the process groups get the signal too
      group_asked,  // deadline: `kill_at`
      killed,       // deadline: kKillLimit
      draining,     // all have ended. Deadline: kDrainLimit; none where helpers are waited for
      hurried,      // deadline: kHurryLimit
    };
    Attempt attempt;
    Step step = Step::asked;
    int signal = 0;
    TimePoint kill_at;
    std::optional<TimePoint> deadline;  // of `step`
    std::optional<Verdict> verdict;
    int stop_signal = 0;          // that we were told to stop with
    bool operators_wish = false;  // ddpctl stopped the job or drained this node: its outcome is in `verdict`
  };
  struct Waiting {  // for what the rendezvous makes of our end
    Attempt attempt;
  };
  struct Ended {};
  using Phase = std::variant<Fresh, Joining, Starting, Running, Stopping, Waiting, Ended>;

  // node_life.cc
  void say(Say::Tone tone, std::string text);
  void emit(NodeAction action) { out_.push_back(std::move(action)); }
  NodeActions take() { return std::exchange(out_, NodeActions()); }
  void end(JobOutcome outcome);
  JobOutcome unreachable() const;
  JobOutcome ended_well(rdzv::DoneResult result, std::string_view how);
  void shift(Duration gap);
  TimePoint silent_until(TimePoint from, std::chrono::milliseconds limit) const;
  std::chrono::milliseconds drain_limit() const;
  std::optional<TimePoint> deadline_of(const Joining& joining) const;
  std::optional<TimePoint> deadline_of(const Running& running) const;
  std::optional<TimePoint> deadline_of(const Waiting& waiting) const;

  // node_life_join.cc: joining and starting
  void join(Round last_round, TimePoint now);
  void on_joining(Joining& joining, const NodeEvent& event, TimePoint now);
  void on_joining(Joining& joining, const rdzv::ServerMessage& message, TimePoint now);
  void accept(const Joining& joining, const rdzv::Assignment& assignment, TimePoint now);
  void on_starting(Starting& starting, const NodeEvent& event, TimePoint now);
  void while_starting(Starting& starting, const NodeEvent& event, TimePoint now);
  void start(Starting& starting, TimePoint now);
  void run(Starting& starting, TimePoint now);
  void start_failed(Attempt attempt, const StartFailed& failed, TimePoint now);
  void tick_joining(Joining& joining, TimePoint now);
  void tick_starting(Starting& starting, TimePoint now);

  // node_life_run.cc: running
  void on_running(Running& running, const NodeEvent& event, TimePoint now);
  void on_worker_ended(Running& running, const WorkerEnded& ended, TimePoint now);
  void failed(Running& running, TimePoint now, std::string note);
  void tick_running(Running& running, TimePoint now);
  void tell_failure(const Attempt& attempt);
  FailureRecord blank_record(const Attempt& attempt) const;
  void note_early_finishers(Attempt& attempt, const WorkerEnd& cause) const;

  // node_life_stop.cc: stopping and waiting
  struct Stop {
    int signal = 0;
    std::chrono::milliseconds patience{0};
    std::optional<Verdict> verdict;
    int stop_signal = 0;
    bool operators_wish = false;
  };
  void begin_stop(Attempt attempt, Stop stop, TimePoint now);
  void kill_rest(Stopping& stopping, TimePoint now);
  void all_ended(Stopping& stopping, TimePoint now);
  void on_stopping(Stopping& stopping, const NodeEvent& event, TimePoint now);
  void on_stopping(Stopping& stopping, const rdzv::ServerMessage& message, TimePoint now);
  void limit_drain(Stopping& stopping, TimePoint now);
  void stop_waiting(Stopping& stopping, int signal, TimePoint now);
  bool helpers_may_stay(const Stopping& stopping) const;
  void tell_done(Attempt& attempt, TimePoint now);
  void lease_over(Stopping& stopping, TimePoint now);
  void stop_again(Stopping& stopping, int signal, TimePoint now);
  void hurry(Stopping& stopping, TimePoint now);
  void tick_stopping(Stopping& stopping, TimePoint now);
  void drained(Stopping& stopping, TimePoint now);
  void on_waiting(Waiting& waiting, const NodeEvent& event, TimePoint now);
  void tick_waiting(Waiting& waiting, TimePoint now);
  void conclude(Attempt attempt, Verdict verdict, TimePoint now);
  // What a message of the rendezvous decides about a round that runs or ends, and says so; nullopt: nothing.
  std::optional<Stop> decided_by(const rdzv::ServerMessage& message, const Attempt& attempt);

  NodeOptions options_;
  std::string host_;
  Phase phase_;
  Link link_;
  TimePoint resumed_at_;  // when this process last came out of a pause
  std::string hopeless_;  // why nobody will ever answer; "" = somebody may
  Round last_round_;
  bool started_before_ = false;
  NodeActions out_;
};

}  // namespace ddprun::launcher
