#include "rendezvous/membership/damping.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

TEST(Damping, TheSecondShortStayOfAHostCountsAndEachMoreDoubles) {
  Damping damping;
  TimePoint now{};
  const int expected[] = {0, 20, 40, 80, 160, 300, 300};
  for (const int wait : expected) {
    EXPECT_EQ(damping.went("pod", seconds(4), Round(0), now), wait > 0);
    EXPECT_EQ(damping.patience("pod", now), seconds(wait));
    EXPECT_EQ(damping.patience("other", now), seconds(0));
    now += seconds(30);
  }
  EXPECT_EQ(damping.times("pod"), 7);
}

TEST(Damping, AProperStayOrTimeMakesGood) {
  Damping damping;
  const TimePoint now{};
  for (int i = 0; i < 3; ++i) damping.went("pod", seconds(4), Round(0), now);
  for (int i = 0; i < 3; ++i) damping.went("pod2", seconds(4), Round(0), now);
  EXPECT_FALSE(damping.went("pod", Damping::kShortStay, Round(0), now));
  EXPECT_EQ(damping.patience("pod", now), seconds(0));
  EXPECT_EQ(damping.patience("pod2", now + minutes(9)), seconds(40));
  EXPECT_EQ(damping.patience("pod2", now + minutes(10)), seconds(0));
  EXPECT_FALSE(damping.went("pod2", seconds(4), Round(0), now + minutes(10)));
}

TEST(Damping, RoundsThatEndSoCountAgainstAllWhereNamesAreNew) {
  Damping damping;
  TimePoint now{};
  for (int round = 1; round <= 3; ++round) {
    for (int node = 0; node < 8; ++node) {  // a rack that goes is one event
      damping.went("pod-" + std::to_string(round) + "-" + std::to_string(node), seconds(4), Round(round), now);
    }
    now += seconds(10);
    EXPECT_EQ(damping.patience("new", now), seconds(0));
  }
  damping.went("pod-4", seconds(4), Round(4), now);
  EXPECT_EQ(damping.patience("new", now), seconds(20));
  for (int round = 5; round < 9; ++round) damping.went("pod" + std::to_string(round), seconds(4), Round(round), now);
  EXPECT_EQ(damping.patience("new", now), seconds(60));
}

}  // namespace
}  // namespace ddprun::rendezvous
