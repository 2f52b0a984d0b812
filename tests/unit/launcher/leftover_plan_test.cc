#include "launcher/process/leftover_plan.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr LeftoverTimes kTimes{.leave = milliseconds(2'000),
                               .terminate = milliseconds(1'500),
                               .asked = milliseconds(30'000),
                               .tracker = milliseconds(10'000),
                               .hurried_tracker = milliseconds(2'000),
                               .dead = milliseconds(5'000)};

TimePoint at(int ms) { return TimePoint(milliseconds(1'000'000 + ms)); }

Leftover helper(pid_t pid) { return {.pid = pid, .start_time = 1, .since = at(0)}; }
Leftover tracker(pid_t pid) { return {.pid = pid, .start_time = 1, .tracker = true, .since = at(0)}; }

// "11:SIGTERM 12:SIGKILL"
std::string orders(const LeftoverPlan::Step& step) {
  std::string text;
  for (const auto& order : step.orders) {
    text += (text.empty() ? "" : " ") + std::to_string(order.pid) + ":" + std::to_string(order.signal);
  }
  return text;
}

TEST(LeftoverPlan, NothingLeftIsDoneAtOnce) {
  for (const auto policy : {Leftovers::end, Leftovers::wait, Leftovers::keep}) {
    EXPECT_TRUE(LeftoverPlan(policy, kTimes).on_look({}, false, at(0)).done);
  }
}

TEST(LeftoverPlan, TimeThenSigtermThenSigkill) {
  LeftoverPlan plan(Leftovers::end, kTimes);
  auto step = plan.on_look({helper(11)}, false, at(10));
  EXPECT_EQ(orders(step), "");
  EXPECT_FALSE(step.done);
  EXPECT_EQ(step.deadline, at(2'000));
  step = plan.on_look({helper(11)}, false, at(2'000));
  EXPECT_EQ(orders(step), "11:15");
  EXPECT_EQ(step.deadline, at(3'500));
  EXPECT_EQ(orders(plan.on_look({helper(11)}, false, at(3'499))), "");
  EXPECT_EQ(orders(plan.on_look({helper(11)}, false, at(3'500))), "11:9");
  EXPECT_TRUE(plan.on_look({}, false, at(3'501)).done);
}

TEST(LeftoverPlan, OneThatComesLateHasHadItsTime) {
  LeftoverPlan plan(Leftovers::end, kTimes);
  EXPECT_EQ(orders(plan.on_look({helper(11)}, false, at(60'000))), "11:9");
}

TEST(LeftoverPlan, AnIdThatWasGivenAnewIsAnotherProcess) {
  LeftoverPlan plan(Leftovers::end, kTimes);
  EXPECT_EQ(orders(plan.on_look({helper(11)}, false, at(2'000))), "11:15");
  Leftover other = helper(11);
  other.start_time = 2;
  other.since = at(2'500);
  EXPECT_EQ(orders(plan.on_look({other}, false, at(3'500))), "");
}

TEST(LeftoverPlan, WhoDoesNotDieIsGivenUp) {
  LeftoverPlan plan(Leftovers::end, kTimes);
  Leftover stuck = helper(11);
  stuck.no_patience = true;
  EXPECT_EQ(orders(plan.on_look({stuck}, false, at(0))), "11:9");
  EXPECT_EQ(plan.on_look({stuck}, false, at(0)).deadline, at(5'000));
  auto step = plan.on_look({stuck}, false, at(5'000));
  EXPECT_EQ(step.stuck, std::vector<pid_t>{11});
  EXPECT_TRUE(step.done);
  EXPECT_TRUE(plan.on_look({stuck}, false, at(5'001)).stuck.empty());  // said once
}

TEST(LeftoverPlan, TrackersComeLast) {
  LeftoverPlan plan(Leftovers::end, kTimes);
  EXPECT_EQ(orders(plan.on_look({tracker(7), helper(11)}, false, at(2'000))), "11:15");
  EXPECT_EQ(orders(plan.on_look({tracker(7), helper(11)}, false, at(3'500))), "11:9");
  auto step = plan.on_look({tracker(7)}, false, at(4'000));
  EXPECT_EQ(orders(step), "");
  EXPECT_FALSE(step.done);
  EXPECT_EQ(step.deadline, at(14'000));
  EXPECT_EQ(orders(plan.on_look({tracker(7)}, false, at(14'000))), "7:9");
}

TEST(LeftoverPlan, TrackersAreLeftAloneWhileWorkersRun) {
  LeftoverPlan plan(Leftovers::end, kTimes);
  auto step = plan.on_look({tracker(7)}, true, at(100'000));
  EXPECT_EQ(orders(step), "");
  EXPECT_EQ(step.deadline, std::nullopt);
  EXPECT_EQ(orders(plan.on_look({tracker(7)}, false, at(200'000))), "");
  EXPECT_EQ(orders(plan.on_look({tracker(7)}, false, at(210'000))), "7:9");
}

TEST(LeftoverPlan, TrackersThatOneWhoIsStuckHoldsAreNotWaitedForWithoutEnd) {
  LeftoverPlan plan(Leftovers::end, kTimes);
  Leftover stuck = helper(11);
  stuck.no_patience = true;
  plan.on_look({tracker(7), stuck}, false, at(0));
  plan.on_look({tracker(7), stuck}, false, at(5'000));
  plan.on_look({tracker(7), stuck}, false, at(5'100));
  EXPECT_EQ(orders(plan.on_look({tracker(7), stuck}, false, at(15'100))), "7:9");
}

TEST(LeftoverPlan, HurryKillsButLetsTrackersGo) {
  for (const auto policy : {Leftovers::end, Leftovers::wait, Leftovers::keep}) {
    LeftoverPlan plan(policy, kTimes);
    plan.hurry();
    EXPECT_EQ(orders(plan.on_look({tracker(7), helper(11)}, false, at(10))), "11:9");
    EXPECT_EQ(plan.on_look({tracker(7)}, false, at(20)).deadline, at(2'020));
    EXPECT_EQ(orders(plan.on_look({tracker(7)}, false, at(2'020))), "7:9");
  }
}

TEST(LeftoverPlan, WaitHasNoLimitButHurry) {
  LeftoverPlan plan(Leftovers::wait, kTimes);
  auto step = plan.on_look({helper(11)}, false, at(1'000'000));
  EXPECT_EQ(orders(step), "");
  EXPECT_FALSE(step.done);
  plan.hurry();
  EXPECT_EQ(orders(plan.on_look({helper(11)}, false, at(1'000'001))), "11:9");
}

TEST(LeftoverPlan, WhenWaitIsOverForASignalAllGetItAndTheJobsPatience) {
  LeftoverPlan plan(Leftovers::wait, kTimes);
  EXPECT_EQ(orders(plan.on_look({helper(11), tracker(12)}, false, at(600'000))), "");
  plan.stop_waiting(SIGTERM);
  auto step = plan.on_look({helper(11), tracker(12)}, false, at(600'010));
  EXPECT_EQ(orders(step), "11:15");
  EXPECT_EQ(step.deadline, at(630'010));
  EXPECT_EQ(orders(plan.on_look({helper(11), tracker(12)}, false, at(630'010))), "11:9");
}

TEST(LeftoverPlan, WhenWaitIsOverWithoutASignalTheTimesOfEndBeginThen) {
  LeftoverPlan plan(Leftovers::wait, kTimes);
  plan.stop_waiting(0);
  EXPECT_EQ(orders(plan.on_look({helper(11)}, false, at(600'000))), "");
  EXPECT_EQ(orders(plan.on_look({helper(11)}, false, at(602'000))), "11:15");
  EXPECT_EQ(orders(plan.on_look({helper(11)}, false, at(603'500))), "11:9");
}

TEST(LeftoverPlan, ThereIsNoWaitToBeOverWithEndAndKeep) {
  LeftoverPlan end(Leftovers::end, kTimes), keep(Leftovers::keep, kTimes);
  end.stop_waiting(SIGTERM);
  keep.stop_waiting(SIGTERM);
  EXPECT_EQ(orders(end.on_look({helper(11)}, false, at(10))), "");
  EXPECT_TRUE(keep.on_look({helper(11)}, false, at(10)).done);
}

TEST(LeftoverPlan, KeepIsDoneWithWhateverRuns) {
  LeftoverPlan plan(Leftovers::keep, kTimes);
  auto step = plan.on_look({helper(11), tracker(7)}, false, at(1'000'000));
  EXPECT_EQ(orders(step), "");
  EXPECT_TRUE(step.done);
}

// A shell that is the wrapper of the true program dies of the signal, the program has not heard it.
TEST(LeftoverPlan, WhoHasNotHeardTheStopSignalGetsItAndTheJobsPatience) {
  for (const auto policy : {Leftovers::end, Leftovers::wait}) {
    LeftoverPlan plan(policy, kTimes);
    Leftover program = helper(11);
    program.unheard_signal = SIGINT;
    auto step = plan.on_look({program}, false, at(5));
    EXPECT_EQ(orders(step), "11:2");
    EXPECT_EQ(step.deadline, at(30'005));
    EXPECT_EQ(orders(plan.on_look({program}, false, at(10'000))), "");
    EXPECT_EQ(orders(plan.on_look({program}, false, at(30'005))), "11:9");
  }
}

}  // namespace
}  // namespace ddprun::launcher
