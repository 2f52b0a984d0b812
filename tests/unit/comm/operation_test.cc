#include "worker/comm/operation.h"

#include <gtest/gtest.h>

namespace ddprun::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Operation, TimeInWhichItsProcessDidNotRunDoesNotCount) {
  Operation op;
  const TimePoint begin = SteadyClock::now();
  op.set_deadline(begin + seconds(30));
  EXPECT_FALSE(op.look(begin));  // the first look has nothing before it
  EXPECT_FALSE(op.look(begin + milliseconds(20)));
  EXPECT_EQ(op.deadline(), begin + seconds(30));
  EXPECT_TRUE(op.look(begin + milliseconds(20) + seconds(45)));  // scontrol suspend
  EXPECT_EQ(op.deadline(), begin + seconds(75));
  EXPECT_FALSE(op.look(begin + seconds(46)));
  EXPECT_EQ(op.deadline(), begin + seconds(75));
}

TEST(Operation, WaitingIsNoPause) {
  Operation op;
  TimePoint now = SteadyClock::now();
  const TimePoint deadline = now + seconds(1);
  op.set_deadline(deadline);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(op.look(now += milliseconds(40)));
  EXPECT_EQ(op.deadline(), deadline);
}

}  // namespace
}  // namespace ddprun::comm
