#include "launcher/life/worker_tally.h"

#include <gtest/gtest.h>

namespace ddprun::launcher {
namespace {

using Verdict = WorkerTally::Verdict;

WorkerEnd end_of(std::int64_t worker, int code, int signal = 0, bool asked = false) {
  WorkerEnd end;
  end.worker = LocalRank(worker);
  end.code = code;
  end.signal = signal;
  end.asked = asked;
  return end;
}

TEST(WorkerTally, AnEarlyFinisherIsNoFailureAndNoEnd) {
  WorkerTally tally(3);
  EXPECT_EQ(tally.on(end_of(2, 0)), Verdict::carry_on);
  EXPECT_EQ(tally.on(end_of(0, 0)), Verdict::carry_on);
  EXPECT_EQ(tally.running(), std::vector<LocalRank>{LocalRank(1)});
  EXPECT_EQ(tally.early_finishers().size(), 2u);
  EXPECT_EQ(tally.on(end_of(1, 0)), Verdict::finished);
}

TEST(WorkerTally, AnExitCodeOrASignalIsAFailureOfThatWorker) {
  WorkerTally tally(3);
  EXPECT_EQ(tally.on(end_of(1, 3)), Verdict::failed);
  EXPECT_EQ(tally.blamed()->worker, LocalRank(1));
  WorkerTally other(3);
  EXPECT_EQ(other.on(end_of(2, 0, 9)), Verdict::failed);
  EXPECT_EQ(other.blamed()->worker, LocalRank(2));
}

TEST(WorkerTally, WhoWasAskedToStopIsNotToBlame) {
  WorkerTally tally(2);
  EXPECT_EQ(tally.on(end_of(0, 0, 15, true)), Verdict::carry_on);
  EXPECT_EQ(tally.on(end_of(1, 1, 0, true)), Verdict::carry_on);
  EXPECT_TRUE(tally.all_ended());
  EXPECT_EQ(tally.blamed(), nullptr);
}

TEST(WorkerTally, AllEndingWith75IsNoFailureAskedOrNot) {
  WorkerTally tally(2);
  EXPECT_EQ(tally.on(end_of(0, 75)), Verdict::carry_on);
  EXPECT_FALSE(tally.all_saved());
  EXPECT_EQ(tally.on(end_of(1, 75)), Verdict::resumable);
  WorkerTally asked(2);
  asked.on(end_of(0, 75, 0, true));
  asked.on(end_of(1, 75, 0, true));
  EXPECT_TRUE(asked.all_saved());
}

TEST(WorkerTally, SomeThroughAndSomeToBeResumedIsAFailure) {
  WorkerTally tally(3);
  EXPECT_EQ(tally.on(end_of(0, 0)), Verdict::carry_on);
  EXPECT_EQ(tally.on(end_of(1, 75)), Verdict::carry_on);
  EXPECT_EQ(tally.on(end_of(2, 0)), Verdict::failed);
  EXPECT_EQ(tally.blamed()->worker, LocalRank(1));
}

TEST(WorkerTally, WhoSavedFirstIsToBlameWhenNobodyFollows) {
  WorkerTally tally(3);
  EXPECT_EQ(tally.nobody_followed(), Verdict::carry_on);
  EXPECT_EQ(tally.on(end_of(2, 75)), Verdict::carry_on);
  EXPECT_EQ(tally.nobody_followed(), Verdict::failed);
  EXPECT_EQ(tally.blamed()->worker, LocalRank(2));
}

TEST(WorkerTally, AnEndCountsOnceAndOnlyOfAWorkerThatThereIs) {
  WorkerTally tally(1);
  EXPECT_EQ(tally.on(end_of(7, 1)), Verdict::carry_on);
  EXPECT_EQ(tally.on(end_of(-1, 1)), Verdict::carry_on);
  EXPECT_EQ(tally.on(end_of(0, 0)), Verdict::finished);
  EXPECT_EQ(tally.on(end_of(0, 1)), Verdict::carry_on);
}

TEST(RanksText, JoinsNeighboursAndEndsWithACount) {
  const auto list = [](std::vector<int> values) {
    std::vector<LocalRank> out;
    for (const int value : values) out.push_back(LocalRank(value));
    return out;
  };
  EXPECT_EQ(ranks_text(list({3}), Rank(8)), "rank 11");
  EXPECT_EQ(ranks_text(list({0, 1, 3, 4, 5}), Rank(0)), "ranks 0, 1, 3..5");
  EXPECT_EQ(ranks_text(list({0, 2, 4, 6}), Rank(0), 2), "ranks 0, 2 and 2 more");
}

}  // namespace
}  // namespace ddprun::launcher
