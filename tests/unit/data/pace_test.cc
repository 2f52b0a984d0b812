#include "worker/run/pace.h"

#include <gtest/gtest.h>

namespace ddprun::trainer {
namespace {

constexpr RunBounds kFiveEpochs{.epochs = 5, .max_steps = 0, .schedule_total = 0};
constexpr EpochShape kOneRank{.batch = 4, .steps = 28}, kTwoRanks{.batch = 8, .steps = 14};

TEST(Pace, IsTheStepAsLongAsNothingChanges) {
  const Pace pace(kFiveEpochs, kOneRank, EpochShape());
  EXPECT_EQ(pace.schedule_total(), 140);
  EXPECT_EQ(pace.begun().steps, 28);
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (int step = 0; step < 28; ++step) {
      EXPECT_EQ(pace.schedule_position(epoch * 28 + step, epoch, step * 4), epoch * 28 + step);
    }
  }
  EXPECT_EQ(pace.steps_left(30, 1, 2), 110);
}

TEST(Pace, FollowsTheDataInAnotherWorld) {
  const Pace pace(kFiveEpochs, kTwoRanks, kOneRank);
  EXPECT_EQ(pace.schedule_total(), 140);
  EXPECT_EQ(pace.schedule_position(70, 2, 56), 70);  // as it was when the world changed
  EXPECT_EQ(pace.schedule_position(71, 2, 64), 72);
  EXPECT_EQ(pace.schedule_position(105, 5, 0), 140);
  EXPECT_EQ(pace.steps_left(70, 2, 7), 35);
  const Pace back(kFiveEpochs, kOneRank, kTwoRanks);
  EXPECT_EQ(back.schedule_position(36, 2, 60), 35.5);
  EXPECT_EQ(back.schedule_position(99, 2, 116), 42);  // the last step of an epoch may use more entries than there are
}

TEST(Pace, ABoundInStepsCountsSteps) {
  const Pace total({.epochs = 5, .max_steps = 0, .schedule_total = 100}, kTwoRanks, kOneRank);
  EXPECT_EQ(total.schedule_position(50, 3, 8), 50);
  EXPECT_EQ(total.schedule_total(), 100);
  const Pace ends({.epochs = 5, .max_steps = 60, .schedule_total = 0}, kTwoRanks, kOneRank);
  EXPECT_EQ(ends.schedule_position(50, 3, 8), 50);
  EXPECT_EQ(ends.schedule_total(), 60);
  EXPECT_EQ(ends.steps_left(50, 3, 1), 10);
  const Pace wide({.epochs = 5, .max_steps = 1000, .schedule_total = 0}, kTwoRanks, kOneRank);
  EXPECT_EQ(wide.schedule_position(50, 3, 8), 86);
  EXPECT_EQ(wide.schedule_total(), 140);
}

}  // namespace
}  // namespace ddprun::trainer
