#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "launcher/life/node_life.h"
#include "launcher/life/node_words.h"

// A million random events against what must hold of every node's life, whatever workers, rendezvous, user and time do.
namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    options_.run_id = RunId("job");
    options_.endpoint = Endpoint{"10.0.0.1", 29400};
    options_.nproc = pick(1, 4);
    options_.job.max_restarts = pick(0, 3);
    options_.shutdown_timeout = milliseconds(chance(20) ? 0 : pick(1, 30'000));
    options_.restart_backoff = milliseconds(chance(50) ? 0 : pick(1, 5'000));
    options_.job.join_timeout = milliseconds(pick(chance(10) ? 1 : 10'000, 60'000));
    options_.job.close_timeout = milliseconds(pick(0, 30'000));
    options_.job.keep_alive_interval = milliseconds(pick(1, 5'000));
    options_.on_silence = chance(20) ? OnSilence::keep : OnSilence::stop;
    options_.wait_for_helpers = chance(20);
    options_.signal_groups = chance(20);
    life_ = std::make_unique<NodeLife>(options_, "host-a");
    take(life_->begin(now_));
  }

  // One random event, or time. Returns how many events it was.
  int step() {
    if (life_->ended()) return 0;
    if (!pending_.empty() && chance(30)) {
      answer();
    } else if (chance(45)) {
      pass();
    } else {
      take(life_->on(random_event(), now_));
    }
    check();
    return 1;
  }

  // From a stop request on nothing answers any more: it must end all the same, in time.
  void stop_and_starve() {
    if (life_->ended()) return;
    stop_requested_ = true;
    take(life_->on(StopRequest{15}, now_));
    const TimePoint limit = now_ + life_->stop_bound();
    while (!life_->ended() && broken_.empty()) {
      const auto due = life_->next_deadline();
      if (!due || *due > limit) {
        broken_ = fmt::format("not ended {} after a stop request, in phase {}", due ? "within the bound" : "ever",
                              life_->phase());
        return;
      }
      now_ = std::max(now_, *due);
      take(life_->tick(now_));
      check();
    }
  }

  bool ended() const { return life_->ended(); }
  const std::string& broken() const { return broken_; }

 private:
  std::int64_t pick(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random_);
  }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  void fail(std::string why) {
    if (broken_.empty()) broken_ = std::move(why);
  }

  void pass() {
    const auto due = life_->next_deadline();
    if (due && chance(60)) {
      now_ = std::max(now_, *due) + (chance(10) ? milliseconds(pick(0, 100'000)) : milliseconds(0));
    } else {
      now_ += milliseconds(pick(0, 2'000));
    }
    if (chance(70)) answered();
    take(life_->tick(now_));
  }

  // The rendezvous answers a heartbeat.
  void answered() {
    if (hopeless_) return;
    link_ = Link();
    link_.useful = now_;
    take(life_->on(link_, now_));
  }

  // SIGSTOP, or a suspended machine: what was not late before is not late after it.
  void pause() {
    const auto due = life_->next_deadline();
    if (due && *due <= now_) return;
    const milliseconds gap(pick(0, 1'000'000));
    now_ += gap;
    take(life_->on(Paused{gap}, now_));
    take(life_->on(link_, now_));  // the client's times are not moved
    if (const auto later = life_->next_deadline(); later && *later <= now_) {
      fail(fmt::format("a pause made a deadline of phase {} pass", life_->phase()));
    }
  }

  // What an action asked for is done, perhaps late.
  void answer() {
    if (pending_.empty()) return;
    const NodeEvent event = pending_.front();
    pending_.erase(pending_.begin());
    const auto* failed = std::get_if<StartFailed>(&event);
    take(life_->on(event, now_));
    if (failed != nullptr && failed->round == round_ && life_->phase() == "stopping") {
      fail("stops workers that could not be started");
    }
  }

  LocalRank some_worker() { return LocalRank(pick(chance(5) ? -1 : 0, options_.nproc - (chance(5) ? 0 : 1))); }

  NodeEvent random_event() {
    const std::int64_t kind = pick(0, 99);
    if (kind < 30 && !alive_.empty()) {
      WorkerEnded ended;
      ended.round = chance(95) ? round_ : Round(round_.value - 1);
      ended.end.worker = some_worker();
      constexpr int kCodes[] = {0, 0, 0, 75, 75, 75, 1, 3, 78, 126, 137, 255};
      if (chance(80)) {
        ended.end.code = kCodes[pick(0, std::size(kCodes) - 1)];
      } else {
        ended.end.signal = chance(50) ? 9 : 15;
      }
      ended.end.asked = asked_.contains(ended.end.worker.value) || chance(5);
      ended.after_guard = chance(10);
      ended.end.at = now_ - milliseconds(pick(0, 100));
      if (ended.round == round_) alive_.erase(ended.end.worker.value);
      return ended;
    }
    if (kind < 40 && draining_ && (alive_.empty() || chance(3))) {
      draining_ = false;
      return WorkersDrained{chance(95) ? round_ : Round(round_.value - 1)};
    }
    if (kind < 55) {
      rdzv::Assignment a;
      a.round = Round(chance(90) ? round_.value + 1 : pick(0, 20));
      a.restart_count = pick(0, options_.job.max_restarts + (chance(1) ? 1 : 0));
      a.group_world_size = pick(1, 3);
      a.group_rank = GroupRank(pick(0, a.group_world_size - (chance(1) ? 0 : 1)));
      a.first_rank = Rank(pick(0, 3));
      a.world_size = a.first_rank.value + options_.nproc - (chance(1) ? 1 : 0);
      offered_ = a;
      return rdzv::ServerMessage(a);
    }
    if (kind < 65) {
      rdzv::Restart restart;
      restart.round = chance(80) ? round_ : Round(round_.value - 1);
      restart.reason = "because";
      return rdzv::ServerMessage(restart);
    }
    if (kind == 65 && chance(30)) {
      rdzv::Finished finished;
      finished.result = chance(50) ? rdzv::DoneResult::success : rdzv::DoneResult::resume_me;
      return rdzv::ServerMessage(finished);
    }
    if (kind == 66 && chance(30)) {
      rdzv::Shutdown shutdown;
      shutdown.cause = static_cast<rdzv::ShutdownCause>(pick(0, 4));
      if (chance(80)) shutdown.reason = "a reason";
      if (chance(80)) shutdown.failures.resize(static_cast<std::size_t>(pick(0, 2)));
      if (chance(80)) shutdown.root = static_cast<std::uint32_t>(pick(0, 2));
      return rdzv::ServerMessage(shutdown);
    }
    if (kind < 71) {
      rdzv::Refused refused;
      refused.retry = chance(97);
      refused.reason = "no";
      return rdzv::ServerMessage(refused);
    }
    if (kind < 73) return rdzv::ServerMessage(rdzv::Notice());
    if (kind < 78) return LeaseOver();
    if (kind == 78 && chance(30)) {
      hopeless_ = true;
      return Hopeless{"another protocol"};
    }
    if (kind == 79 && chance(50)) {
      stop_requested_ = true;
      return StopRequest{chance(50) ? 15 : 2};
    }
    if (kind < 82)
      return chance(5) ? NodeEvent(JoinFailed{"no port"}) : NodeEvent(RoundAccepted{Round(round_.value - 1)});
    if (kind < 84) {
      pause();
      return link_;
    }
    Link link;
    if (chance(20)) link.useless_since = now_ - milliseconds(pick(0, 20'000));
    link.useful = now_ - milliseconds(pick(0, 10'000));
    link.embedded = chance(50);
    if (hopeless_) link = link_;  // such a client hears nothing any more
    link_ = link;
    return link;
  }

  void take(NodeActions actions) {
    for (const NodeAction& action : actions) {
      if (ended_) fail("an action after End");
      if (const auto* accept = std::get_if<AcceptRound>(&action)) {
        if (!offered_ || accept->assignment.round != offered_->round) fail("accepts what nobody offered");
        if (accept->assignment.round <= round_) fail("accepts a round that is over");
        round_ = accept->assignment.round;
        offered_.reset();
        started_round_ = false;
        pending_.push_back(chance(90) ? NodeEvent(RoundAccepted{round_}) : NodeEvent(start_failed()));
      } else if (const auto* start = std::get_if<StartWorkers>(&action)) {
        if (stop_requested_) fail("starts workers after a stop request");
        if (started_round_) fail("starts workers twice in a round");
        if (!alive_.empty()) fail("starts workers while others live");
        if (start->assignment.restart_count > options_.job.max_restarts) fail("exceeds the budget");
        started_round_ = true;
        if (chance(85)) {
          for (const LocalRank worker : start->workers) alive_.insert(worker.value);
          asked_.clear();
          pending_.push_back(WorkersStarted{round_});
        } else if (chance(80)) {
          pending_.push_back(start_failed());
        } else {
          for (const LocalRank worker : start->workers) alive_.insert(worker.value);  // and no answer
          asked_.clear();
        }
      } else if (const auto* ask = std::get_if<AskToStop>(&action)) {
        asked_.insert(ask->worker.value);
      } else if (const auto* kill = std::get_if<Kill>(&action)) {
        asked_.insert(kill->worker.value);
      } else if (std::holds_alternative<DrainWorkers>(action)) {
        draining_ = true;
      } else if (const auto* end = std::get_if<End>(&action)) {
        ended_ = true;
        check_outcome(end->outcome);
      } else if (std::holds_alternative<BindAndJoin>(action)) {
        if (hopeless_) fail("joins where nobody will answer");
        // Whoever still lives was killed, and does not take it.
        for (const auto worker : alive_) {
          if (!asked_.contains(worker)) fail("joins again with a worker that nobody told to stop");
        }
        alive_.clear();
        draining_ = false;
      }
    }
    if (!pending_.empty() && chance(80)) answer();
  }

  StartFailed start_failed() {
    StartFailed failed;
    failed.round = round_;
    failed.why = "no";
    failed.exit_code = chance(50) ? 1 : 126;
    failed.permanent = failed.exit_code == 126;
    return failed;
  }

  void check_outcome(const JobOutcome& outcome) {
    const bool success = outcome.kind == JobOutcome::Kind::success;
    if (success != (outcome.exit_code == 0)) fail("success and exit code disagree");
    if ((outcome.kind == JobOutcome::Kind::resume_me) != (outcome.exit_code == 75)) fail("75 without resume_me");
    if (!success && outcome.reason.empty() && !outcome.root_cause) fail("ends without a reason");
    for (const auto worker : alive_) {
      if (!asked_.contains(worker)) fail("ends with a worker that nobody told to stop");
    }
  }

  void check() {
    if (life_->ended()) {
      if (!ended_) fail("ended without End");
      if (life_->next_deadline()) fail("a deadline after the end");
      return;
    }
    check_deadline();
  }

  void check_deadline() {
    // A passed deadline that an event has made due is the next tick's; after the tick it must be in the future.
    auto due = life_->next_deadline();
    if (due && *due <= now_) {
      take(life_->tick(now_));
      if (life_->ended()) return;
      due = life_->next_deadline();
      if (due && *due <= now_) fail(fmt::format("a deadline stays, in phase {}", life_->phase()));
    }
    if (!due) {
      const bool runs = life_->phase() == "running" && !alive_.empty();
      const bool helpers =
          life_->phase() == "stopping" && options_.wait_for_helpers && !stop_requested_ && !life_->workers_may_live();
      if (!runs && !helpers) fail(fmt::format("nothing can end phase {}", life_->phase()));
    }
  }

  std::mt19937_64 random_;
  NodeOptions options_;
  std::unique_ptr<NodeLife> life_;
  TimePoint now_{seconds(100'000)};
  Round round_;
  std::optional<rdzv::Assignment> offered_;
  std::set<std::int64_t> alive_, asked_;
  std::vector<NodeEvent> pending_;
  Link link_;
  bool hopeless_ = false;
  bool started_round_ = false, draining_ = false, ended_ = false, stop_requested_ = false;
  std::string broken_;
};

TEST(NodeLifeProperty, WhateverHappensItGoesOnOrEndsWithAReason) {
  const char* wanted = std::getenv("DDPRUN_PROPERTY_EVENTS");
  const long long limit = wanted != nullptr ? std::atoll(wanted) : 1'000'000;
  const char* from = std::getenv("DDPRUN_PROPERTY_SEED");
  std::uint64_t seed = from != nullptr ? std::strtoull(from, nullptr, 10) : 1;
  long long events = 0, lives = 0, starved = 0;
  for (; events < limit; ++seed, ++lives) {
    World world(seed);
    const int steps = 5 + static_cast<int>(seed % 120);
    int done = 0;
    while (done < steps && !world.ended() && world.broken().empty()) done += world.step();
    if (!world.ended() && world.broken().empty()) {
      world.stop_and_starve();
      ++starved;
    }
    events += done + 1;
    ASSERT_EQ(world.broken(), "") << "DDPRUN_PROPERTY_SEED=" << seed;
  }
  EXPECT_GT(lives, 1000);
  EXPECT_GT(starved, lives / 10) << "most lives end too soon to be stopped: the events say little";
}

}  // namespace
}  // namespace ddprun::launcher
