// Random events against the invariants of membership.h. The agents are modelled here, so that what really matters can
// be checked from their side: when a node starts workers of a round, no worker of an older round lives anywhere.
// DDPRUN_PROPERTY_EVENTS sets the number of events (default 1,000,000), DDPRUN_PROPERTY_SEED the first seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "rendezvous/membership/membership.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kStopLimit{3'000};  // an agent whose lease is over has ended its workers by then

struct Agent {
  rdzv::NodeInfo info;
  enum class Doing { absent, waiting, working, done, failed, stopping, leaving, answered } doing = Doing::absent;
  bool reachable = true;  // false: packets are lost both ways
  Round round;            // of the last Assignment
  rdzv::Assignment slice;
  TimePoint answered;  // of its last message that the rendezvous got
  TimePoint waiting_since;
  bool resume = false;
  bool workers =
      false;  // some of them may live: from the Assignment to the next Join, the end, or the end of the lease
};

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    const bool fixed = chance(30);
    template_.job.nnodes_max = 1 + static_cast<std::int64_t>(random_() % 5);
    template_.job.nnodes_min =
        fixed ? template_.job.nnodes_max
              : 1 + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(template_.job.nnodes_max));
    template_.job.max_restarts = static_cast<std::int64_t>(random_() % 4);
    template_.job.last_call_timeout = seconds(random_() % 4);
    template_.job.join_timeout = seconds(10 + random_() % 30);
    template_.job.keep_alive_interval = seconds(1);
    template_.job.keep_alive_max_attempt = 3;
    if (chance(15)) {
      template_.job.backend = RdzvBackend::static_ranks;
      template_.job.nnodes_min = template_.job.nnodes_max;
    }
    agents_.resize(static_cast<std::size_t>(template_.job.nnodes_max) + random_() % 4);
    for (std::size_t i = 0; i < agents_.size(); ++i) renew(agents_[i], i);
  }

  std::string error() const { return error_; }
  std::uint64_t events() const { return events_; }

  void step() {
    const std::size_t i = random_() % agents_.size();
    Agent& agent = agents_[i];
    ++events_;
    switch (random_() % 16) {
      case 0:
      case 1:
      case 2:
        advance(milliseconds(random_() % 700));
        break;
      case 3:
        advance(milliseconds(random_() % 9'000));
        break;
      case 4:
      case 5:
        if (agent.doing == Agent::Doing::absent) {
          renew(agent, i);
          join(agent);
        }
        break;
      case 6:
      case 7:
        if (agent.doing == Agent::Doing::stopping) join(agent);
        break;
      case 8:
        if (agent.doing == Agent::Doing::working) finish(agent);
        break;
      case 9:
        if (agent.doing == Agent::Doing::working && chance(60)) fail(agent);
        break;
      case 10:
        if (agent.doing == Agent::Doing::leaving) {
          go(agent);
        } else if (agent.doing != Agent::Doing::absent && chance(30)) {
          leave(agent);
        }
        break;
      case 11:
        if (agent.doing != Agent::Doing::absent && chance(30)) crash(agent);
        break;
      case 12:
        if (chance(25)) {
          agent.reachable = false;
          note("is cut off", agent);
        }
        break;
      case 13:
        if (!agent.reachable) heal(agent);
        break;
      case 14:
        nonsense(agent);
        break;
      default:
        if (chance(6)) {
          restart_daemon();
        } else if (chance(3)) {
          take(m_.stop("operator", now_));
        } else if (chance(10)) {
          drain(agent);
        } else if (chance(20)) {
          blip(agent);
        } else if (agent.doing == Agent::Doing::answered) {
          go(agent);
        }
    }
    check();
  }

  // Nothing bad happens any more: whoever waits must be answered.
  void settle() {
    for (Agent& agent : agents_) {
      if (!agent.reachable) heal(agent);
    }
    const TimePoint end = now_ + seconds(300);
    while (now_ < end && error_.empty()) {
      for (Agent& agent : agents_) {
        if (agent.doing == Agent::Doing::stopping) join(agent);
        if (agent.doing == Agent::Doing::working && chance(5)) finish(agent);
        if (agent.doing == Agent::Doing::answered || agent.doing == Agent::Doing::leaving) go(agent);
      }
      advance(milliseconds(500));
      check();
    }
    for (const Agent& agent : agents_) {
      const bool in_limbo = agent.doing == Agent::Doing::stopping || agent.doing == Agent::Doing::failed;
      const bool unanswered = agent.doing == Agent::Doing::waiting && m_.phase() != Phase::running;
      if (in_limbo || unanswered) {
        complain("I3: " + agent.info.node_id.value + " (" + std::to_string(static_cast<int>(agent.doing)) + ", round " +
                 std::to_string(agent.round.value) + ") was never answered; round " + std::to_string(m_.round().value) +
                 ": " + m_.why_waiting(now_));
      }
    }
  }

 private:
  bool chance(unsigned percent) { return random_() % 100 < percent; }

  void note(const std::string& what) {
    if (trace_) story_ += "\n" + what;
  }
  void note(const char* what, const Agent& agent) {
    if (trace_) note(agent.info.node_id.value + " " + what + (agent.reachable ? "" : " (cut off)"));
  }

  void complain(const std::string& what) {
    if (error_.empty()) error_ = what + story_;
  }

  void renew(Agent& agent, std::size_t i) {
    agent = Agent();
    agent.info = template_;
    agent.info.run_id = RunId("job");
    agent.info.node_id = NodeId("n" + std::to_string(i) + "-" + std::to_string(++ids_));
    agent.info.host = "host" + std::to_string(i);
    agent.info.address = "10.0.0." + std::to_string(i);
    agent.info.nproc = 1 + static_cast<std::int64_t>(i % 3);
    if (template_.job.backend == RdzvBackend::static_ranks) {
      agent.info.node_rank = static_cast<std::int64_t>(i) % template_.job.nnodes_max;
    }
  }

  Agent* find(const NodeId& id) {
    for (Agent& agent : agents_) {
      if (agent.info.node_id == id) return &agent;
    }
    return nullptr;
  }

  void deliver(Agent& agent, Actions actions) {
    agent.answered = now_;
    take(std::move(actions));
  }

  void join(Agent& agent) {
    note("joins", agent);
    agent.doing = Agent::Doing::waiting;
    agent.workers = false;
    agent.waiting_since = now_;
    if (!agent.reachable) return;
    rdzv::Join join;
    join.node = agent.info;
    join.last_round = agent.round;
    deliver(agent, m_.on(join, now_));
  }

  void finish(Agent& agent) {
    note("is done", agent);
    agent.doing = Agent::Doing::done;
    agent.workers = false;
    agent.resume = chance(15);
    if (!agent.reachable) return;
    rdzv::Done done;
    done.round = agent.round;
    done.result = agent.resume ? rdzv::DoneResult::resume_me : rdzv::DoneResult::success;
    deliver(agent, m_.on(agent.info.node_id, done, now_));
  }

  void fail(Agent& agent) {
    note("fails", agent);
    agent.doing = Agent::Doing::failed;
    if (!agent.reachable) return;
    deliver(agent, m_.on(agent.info.node_id, failure_of(agent), now_));
  }

  rdzv::Failure failure_of(const Agent& agent) {
    rdzv::Failure failure;
    failure.permanent = chance(3);
    failure.record.round = agent.round;
    failure.record.rank = agent.slice.first_rank;
    failure.record.exit_code = 1;
    failure.record.host = agent.info.host;
    failure.record.unix_time = std::chrono::duration_cast<milliseconds>(now_.time_since_epoch());
    return failure;
  }

  // Told to stop: it says so, stops its workers, and goes some time later.
  void leave(Agent& agent) {
    note("leaves", agent);
    const bool member = agent.workers;
    agent.doing = member ? Agent::Doing::leaving : Agent::Doing::absent;
    if (!agent.reachable) return;
    rdzv::Leave leave;
    leave.round = agent.round;
    leave.reason = "told to";
    deliver(agent, m_.on(agent.info.node_id, leave, now_));
  }

  void drain(Agent& agent) {
    note("is drained", agent);
    Actions actions;
    if (m_.drain(agent.info.node_id.value, "drained by the operator", now_, actions)) take(std::move(actions));
  }

  // The process dies with its workers. Its host sends FIN or RST if there is a way.
  void crash(Agent& agent) {
    note("dies", agent);
    const NodeId id = agent.info.node_id;
    agent.doing = Agent::Doing::absent;
    agent.workers = false;
    if (agent.reachable) take(m_.disconnected(id, now_));
  }

  // The final answer was read: the agent closes and is gone.
  void go(Agent& agent) {
    note("goes", agent);
    const NodeId id = agent.info.node_id;
    agent.doing = Agent::Doing::absent;
    agent.workers = false;
    if (agent.reachable) take(m_.disconnected(id, now_));
  }

  // The connection breaks, and the agent is back within the grace.
  void blip(Agent& agent) {
    if (!agent.reachable || agent.doing == Agent::Doing::absent) return;
    note("loses its connection", agent);
    take(m_.disconnected(agent.info.node_id, now_));
    agent.reachable = false;
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      if (agents_[i].doing != Agent::Doing::absent || !chance(50)) continue;
      renew(agents_[i], i);
      join(agents_[i]);
    }
    advance(milliseconds(random_() % 450));
    if (agent.doing != Agent::Doing::absent) heal(agent);
  }

  // The way is open again: the agent, on a new connection, says who it is.
  void heal(Agent& agent) {
    note("is reachable again", agent);
    agent.reachable = true;
    introduce(agent);
  }

  void introduce(Agent& agent) {
    switch (agent.doing) {
      case Agent::Doing::absent:
        return;
      case Agent::Doing::answered:
        if (agent.workers) register_again(agent);
        return;
      case Agent::Doing::waiting:
        join(agent);
        return;
      default:
        register_again(agent);
    }
  }

  void register_again(Agent& agent) {
    rdzv::Register registration;
    registration.node = agent.info;
    registration.slice = agent.slice;
    registration.state = agent.doing == Agent::Doing::done
                             ? (agent.resume ? rdzv::MemberState::resumable : rdzv::MemberState::finished)
                         : agent.doing == Agent::Doing::failed ? rdzv::MemberState::stopping
                                                               : rdzv::MemberState::running;
    const bool failed = agent.doing == Agent::Doing::failed;
    const bool leaving = agent.doing == Agent::Doing::leaving;
    deliver(agent, m_.on(registration, now_));
    if (leaving) {
      rdzv::Leave again;
      again.round = agent.round;
      deliver(agent, m_.on(agent.info.node_id, again, now_));
    }
    if (failed && agent.doing == Agent::Doing::failed) {
      deliver(agent, m_.on(agent.info.node_id, failure_of(agent), now_));
    }
  }

  // Messages that no agent of ours would send now.
  void nonsense(Agent& agent) {
    if (!agent.reachable || agent.doing == Agent::Doing::absent) return;
    rdzv::Done done;
    done.round = Round(static_cast<std::int64_t>(random_() % 5));
    rdzv::Failure failure = failure_of(agent);
    failure.record.round = Round(static_cast<std::int64_t>(random_() % 5));
    const bool would_count = agent.workers || agent.doing == Agent::Doing::working;
    if (would_count && done.round == agent.round) return;
    if (would_count && failure.record.round == agent.round) return;
    take(m_.on(agent.info.node_id, done, now_));
    take(m_.on(NodeId("nobody"), failure, now_));
    if (agent.doing == Agent::Doing::waiting) join(agent);  // twice the same
  }

  void restart_daemon() {
    // Without a state file a restarted daemon forms at once with fresh Joins only, by design; so a cut-off world needs
    // a witness who comes back.
    const bool state_file = chance(50);
    bool cut_off = false, witness = false;
    for (const Agent& agent : agents_) {
      const bool member = agent.doing == Agent::Doing::working || agent.doing == Agent::Doing::done ||
                          agent.doing == Agent::Doing::failed;
      cut_off = cut_off || (agent.workers && !agent.reachable);
      witness = witness || (member && agent.reachable);
    }
    if (cut_off && !witness && !state_file) return;
    note("the daemon is restarted");
    const auto known = m_.known_world();
    m_ = Membership(RunId("job"));
    if (known && state_file) m_.expect(*known, now_);
    // Those that can reach it are back within a second, in any order, before fresh nodes come.
    std::vector<Agent*> order;
    for (Agent& agent : agents_) {
      if (agent.reachable) order.push_back(&agent);
    }
    std::shuffle(order.begin(), order.end(), random_);
    // Members first: without a state file a fresh Join that came before them would form at once, by design.
    if (!state_file)
      std::stable_partition(order.begin(), order.end(),
                            [](const Agent* a) { return a->doing != Agent::Doing::waiting; });
    for (Agent* agent : order) introduce(*agent);
  }

  void advance(milliseconds time) {
    const TimePoint end = now_ + time;
    int ticks = 0;
    while (now_ < end) {
      TimePoint next = std::min(end, now_ + milliseconds(500));
      if (const auto due = m_.next_deadline(); due && *due < next) next = std::max(now_, *due);
      now_ = next;
      for (Agent& agent : agents_) {
        if (agent.doing == Agent::Doing::absent) continue;
        if (agent.reachable) {
          m_.heard(agent.info.node_id, now_);
          agent.answered = now_;
        } else if (agent.workers && now_ >= agent.answered + agent.info.job.lease() + kStopLimit) {
          agent.workers = false;  // its lease is over
          note("has no workers any more", agent);
          if (agent.doing == Agent::Doing::working) agent.doing = Agent::Doing::stopping;
        }
      }
      if (const auto due = m_.next_deadline(); due && *due <= now_) {
        take(m_.tick(now_));
        if (const auto again = m_.next_deadline(); again && *again <= now_) complain("a deadline stays after tick()");
      }
      if (++ticks > 100'000) return complain("time does not pass");
    }
  }

  void take(Actions actions) {
    for (const Action& action : actions) {
      const auto* send = std::get_if<Send>(&action);
      if (const auto* event = std::get_if<Event>(&action); event != nullptr && trace_) story_ += "\n* " + event->text;
      if (send == nullptr) continue;
      ++events_;
      if (trace_) story_ += "\n" + send->node.value + " <- message " + std::to_string(send->message.index());
      Agent* agent = find(send->node);
      if (agent == nullptr || !agent->reachable || agent->doing == Agent::Doing::absent) continue;
      if (const auto* a = std::get_if<rdzv::Assignment>(&send->message)) {
        if (agent->doing != Agent::Doing::waiting || a->round <= agent->round) continue;
        start(*agent, *a);
      } else if (const auto* restart = std::get_if<rdzv::Restart>(&send->message)) {
        const bool member = agent->doing == Agent::Doing::working || agent->doing == Agent::Doing::done ||
                            agent->doing == Agent::Doing::failed;
        if (member && restart->round == agent->round) agent->doing = Agent::Doing::stopping;
      } else if (std::holds_alternative<rdzv::Finished>(send->message) ||
                 std::holds_alternative<rdzv::Shutdown>(send->message) ||
                 std::holds_alternative<rdzv::Refused>(send->message)) {
        if (agent->doing == Agent::Doing::leaving) continue;
        const auto* shutdown = std::get_if<rdzv::Shutdown>(&send->message);
        const bool drained = shutdown != nullptr && shutdown->cause == rdzv::ShutdownCause::drained && agent->workers;
        agent->doing = drained ? Agent::Doing::leaving : Agent::Doing::answered;
      }
    }
  }

  void start(Agent& agent, const rdzv::Assignment& a) {
    for (const Agent& other : agents_) {
      if (&other != &agent && other.workers && other.round != a.round) {
        complain("I2: " + agent.info.node_id.value + " starts round " + std::to_string(a.round.value) + " while " +
                 other.info.node_id.value + " runs round " + std::to_string(other.round.value));
      }
      if (&other != &agent && other.workers && other.round == a.round) {
        const std::int64_t mine = a.first_rank.value, theirs = other.slice.first_rank.value;
        if (mine < theirs + other.info.nproc && theirs < mine + agent.info.nproc) complain("I1: a rank twice");
      }
    }
    if (a.group_world_size < template_.job.nnodes_min || a.group_world_size > template_.job.nnodes_max)
      complain("world size");
    if (template_.job.backend == RdzvBackend::static_ranks && a.group_rank.value != *agent.info.node_rank) {
      complain("a static rank was not kept");
    }
    agent.round = a.round;
    agent.slice = a;
    agent.workers = true;
    agent.doing = Agent::Doing::working;
  }

  void check() {
    if (trace_) story_ += "\n--";
    if (const std::string broken = m_.check(); !broken.empty()) complain(broken);
  }

  std::mt19937_64 random_;
  Membership m_{RunId("job")};
  rdzv::NodeInfo template_;
  std::vector<Agent> agents_;
  TimePoint now_{seconds(1'000)};
  std::uint64_t events_ = 0;
  std::uint64_t ids_ = 0;
  std::string error_;
  // DDPRUN_PROPERTY_TRACE=1: what happened, for the one seed that fails.
  bool trace_ = std::getenv("DDPRUN_PROPERTY_TRACE") != nullptr;
  std::string story_;
};

std::uint64_t from_env(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kEvents = 60'000;
#else
constexpr std::uint64_t kEvents = 1'000'000;
#endif

// Nodes that come, and die before they have stayed as long as they must, on a few hosts or each on a new one: the
// minimum that stays forms at once, and starts anew a bounded number of times only.
void come_and_go(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return static_cast<std::int64_t>(random() % limit); };
  const std::int64_t hosts = 1 + below(4);
  const bool new_names = below(4) == 0;
  rdzv::NodeInfo info;
  info.run_id = RunId("job");
  info.job.nnodes_min = 1 + below(4);
  info.job.nnodes_max = info.job.nnodes_min + 1 + below(4);
  info.job.last_call_timeout = seconds(below(4));
  Membership m(RunId("job"));
  TimePoint now = TimePoint() + seconds(1'000);
  std::map<NodeId, TimePoint> dies;
  std::map<NodeId, rdzv::NodeInfo> alive;
  std::int64_t rounds = 0, number = 0;
  std::function<void(const Actions&)> take = [&](const Actions& actions) {
    for (const Action& action : actions) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr || !alive.contains(send->node)) continue;
      if (const auto* assignment = std::get_if<rdzv::Assignment>(&send->message)) {
        rounds = std::max(rounds, assignment->round.value);
      } else if (const auto* restart = std::get_if<rdzv::Restart>(&send->message)) {
        rdzv::Join join;
        join.node = alive.at(send->node);
        join.last_round = restart->round;
        take(m.on(join, now));
      }
    }
  };
  const auto come = [&](const std::string& id, const std::string& host) {
    info.node_id = NodeId(id);
    info.host = host;
    info.address = "10.0.0.1";
    alive[info.node_id] = info;
    rdzv::Join join;
    join.node = info;
    take(m.on(join, now));
  };
  for (std::int64_t i = 0; i < info.job.nnodes_min; ++i)
    come("stays" + std::to_string(i), "steady" + std::to_string(i));
  const TimePoint end = now + std::chrono::minutes(30);
  std::optional<TimePoint> formed;
  while (now < end) {
    now += milliseconds(1 + below(900));
    for (const auto& [id, who] : alive) m.heard(id, now);
    while (m.next_deadline() && *m.next_deadline() <= now) take(m.tick(now));
    for (auto it = dies.begin(); it != dies.end();) {
      if (now < it->second) {
        ++it;
        continue;
      }
      alive.erase(it->first);
      take(m.disconnected(it->first, now));
      it = dies.erase(it);
    }
    if (static_cast<std::int64_t>(dies.size()) < hosts && below(3) == 0) {
      const std::string id = "flaps" + std::to_string(number);
      const std::int64_t host = new_names ? number : number % hosts;
      dies[NodeId(id)] = now + milliseconds(below(15'000));
      come(id, "pod" + std::to_string(host));
      ++number;
    }
    ASSERT_EQ(m.check(), "") << "seed " << seed;
    if (m.phase() == Phase::running && !formed) formed = now;
  }
  ASSERT_TRUE(formed.has_value()) << "seed " << seed << ": the minimum was there";
  EXPECT_LT(*formed - (end - std::chrono::minutes(30)), seconds(20)) << "seed " << seed;
  // In and out again, while it is free: twice for each host, or as many rounds; and one that came before the last of
  // these was noticed.
  const std::int64_t allowed = 1 + 2 * ((new_names ? Damping::kFreeForAll + 1 : 2 * hosts) + hosts);
  EXPECT_LE(rounds, allowed) << "seed " << seed << ", " << hosts << " hosts, " << number << " nodes that came and went";
}

TEST(MembershipProperty, NodesThatComeAndGoDisturbTheOthersABoundedNumberOfTimes) {
  for (std::uint64_t seed = 1; seed <= 100 && !HasFailure(); ++seed) come_and_go(seed);
}

TEST(MembershipProperty, KeepsItsInvariantsUnderRandomEvents) {
  const std::uint64_t wanted = from_env("DDPRUN_PROPERTY_EVENTS", kEvents);
  std::uint64_t seed = from_env("DDPRUN_PROPERTY_SEED", 1);
  std::uint64_t events = 0;
  std::uint64_t worlds = 0;
  for (; events < wanted; ++seed, ++worlds) {
    World world(seed);
    for (int i = 0; i < 400 && world.error().empty(); ++i) world.step();
    if (world.error().empty()) world.settle();
    ASSERT_EQ(world.error(), "") << "seed " << seed;
    events += world.events();
  }
  RecordProperty("events", std::to_string(events));
  EXPECT_GE(events, wanted);
  EXPECT_GT(worlds, 10u);
}

}  // namespace
}  // namespace ddprun::rendezvous
