#include "launcher/restart_policy.h"

#include <gtest/gtest.h>

namespace ddprun::launcher {
namespace {

using Verdict = RestartPolicy::Verdict;
using std::chrono::seconds;

class RestartPolicyTest : public testing::Test {
 protected:
  ManualClock clock_;
  RestartPolicy policy_{3, seconds(30)};
};

TEST_F(RestartPolicyTest, AnEarlyFinisherIsNoFailureAndNoEnd) {
  EXPECT_EQ(policy_.on_exit(LocalRank(2), 0, 0, clock_.now()).verdict, Verdict::carry_on);
  EXPECT_EQ(policy_.on_exit(LocalRank(0), 0, 0, clock_.now()).verdict, Verdict::carry_on);
  EXPECT_FALSE(policy_.deadline());
  EXPECT_EQ(policy_.on_exit(LocalRank(1), 0, 0, clock_.now()).verdict, Verdict::finished);
}

TEST_F(RestartPolicyTest, AnExitCodeOrASignalIsAFailureOfThatWorker) {
  const auto code = policy_.on_exit(LocalRank(1), 3, 0, clock_.now());
  EXPECT_EQ(code.verdict, Verdict::failed);
  EXPECT_EQ(code.worker, LocalRank(1));
  EXPECT_FALSE(code.permanent);
  const auto killed = policy_.on_exit(LocalRank(2), 0, 9, clock_.now());
  EXPECT_EQ(killed.verdict, Verdict::failed);
  EXPECT_EQ(killed.worker, LocalRank(2));
}

TEST_F(RestartPolicyTest, SeventyEightCannotBeMended) {
  EXPECT_TRUE(policy_.on_exit(LocalRank(0), 78, 0, clock_.now()).permanent);
  EXPECT_FALSE(policy_.on_exit(LocalRank(0), 0, 14, clock_.now()).permanent);
}

TEST_F(RestartPolicyTest, AllEndingWithSeventyFiveIsNoFailure) {
  EXPECT_EQ(policy_.on_exit(LocalRank(0), 75, 0, clock_.now()).verdict, Verdict::carry_on);
  clock_.advance(seconds(10));
  EXPECT_EQ(policy_.on_exit(LocalRank(1), 75, 0, clock_.now()).verdict, Verdict::carry_on);
  EXPECT_EQ(policy_.on_exit(LocalRank(2), 75, 0, clock_.now()).verdict, Verdict::resumable);
  EXPECT_FALSE(policy_.deadline());
}

TEST_F(RestartPolicyTest, TheOthersHaveLimitedTimeToFollowTheFirstSeventyFive) {
  EXPECT_EQ(policy_.on_exit(LocalRank(2), 75, 0, clock_.now()).verdict, Verdict::carry_on);
  ASSERT_TRUE(policy_.deadline());
  EXPECT_EQ(policy_.tick(clock_.now()).verdict, Verdict::carry_on);
  clock_.advance(seconds(30));
  const auto late = policy_.tick(clock_.now());
  EXPECT_EQ(late.verdict, Verdict::failed);
  EXPECT_EQ(late.worker, LocalRank(2));
}

TEST_F(RestartPolicyTest, SomeThroughAndSomeToBeResumedIsAFailure) {
  EXPECT_EQ(policy_.on_exit(LocalRank(0), 0, 0, clock_.now()).verdict, Verdict::carry_on);
  EXPECT_EQ(policy_.on_exit(LocalRank(1), 75, 0, clock_.now()).verdict, Verdict::carry_on);
  const auto last = policy_.on_exit(LocalRank(2), 0, 0, clock_.now());
  EXPECT_EQ(last.verdict, Verdict::failed);
  EXPECT_EQ(last.worker, LocalRank(1));
}

TEST(Backoff, GrowsWithTheAttemptAndIsZeroForTheFirst) {
  EXPECT_EQ(backoff_before(0, seconds(2)).count(), 0);
  EXPECT_EQ(backoff_before(1, seconds(2)).count(), 2'000);
  EXPECT_EQ(backoff_before(3, seconds(2)).count(), 8'000);
  EXPECT_EQ(backoff_before(1000, seconds(2)).count(), 60'000);
  EXPECT_EQ(backoff_before(5, std::chrono::milliseconds(0)).count(), 0);
}

TEST(ExitCodeFor, IsTheWorkersOwnOr128PlusItsSignal) {
  FailureRecord failure;
  failure.exit_code = 7;
  EXPECT_EQ(exit_code_for(failure), 7);
  failure.exit_code = 0;
  failure.signal = 11;
  EXPECT_EQ(exit_code_for(failure), 139);
  failure.signal = 0;
  EXPECT_EQ(exit_code_for(failure), 1);
}

}  // namespace
}  // namespace ddprun::launcher
