#include "common/rdzv_greeting.h"

#include <gtest/gtest.h>

namespace ddprun::rdzv {
namespace {

TEST(RdzvGreeting, SaysWhoseItIs) {
  const RunId mine("slurm-7.0.0"), other("only of slurm-7.0.0");
  const auto same = read_embedded_greeting(embedded_greeting(mine, true), mine);
  EXPECT_TRUE(same.embedded && !same.foreign && !same.refuses);
  const auto open = read_embedded_greeting(embedded_greeting(other, false), mine);
  EXPECT_TRUE(open.embedded && open.foreign && !open.refuses);
  const auto closed = read_embedded_greeting(embedded_greeting(other, true), mine);
  EXPECT_TRUE(closed.embedded && closed.foreign && closed.refuses);
}

TEST(RdzvGreeting, OfADaemonAndOfOlderLaunchers) {
  EXPECT_FALSE(read_embedded_greeting("daemon", RunId("a")).embedded);
  const auto old = read_embedded_greeting("embedded", RunId("a"));
  EXPECT_TRUE(old.embedded && !old.foreign && !old.refuses);
  EXPECT_EQ(embedded_greeting(RunId(), true), "embedded");
}

}  // namespace
}  // namespace ddprun::rdzv
