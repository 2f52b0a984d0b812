#include "launcher/job/lost_port.h"

#include <gtest/gtest.h>

namespace ddprun::launcher {
namespace {

using std::chrono::seconds;

JobOutcome failed_with(const std::string& line) {
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::worker_failure;
  outcome.root_cause.emplace();
  outcome.root_cause->last_lines = {"Traceback", line};
  return outcome;
}

TEST(LostPort, OnlyRightAfterTheStart) {
  const auto outcome = failed_with("OSError: [Errno 98] Address already in use");
  EXPECT_TRUE(lost_master_port(outcome, seconds(3)));
  EXPECT_TRUE(lost_master_port(failed_with("code: EADDRINUSE"), seconds(3)));
  EXPECT_FALSE(lost_master_port(outcome, kPortRace + seconds(1)));
}

TEST(LostPort, OnlyTheFirstAttemptsFailureWithTheseWords) {
  EXPECT_FALSE(lost_master_port(failed_with("ValueError"), seconds(3)));
  auto outcome = failed_with("Address already in use");
  outcome.root_cause->restart_count = 1;
  EXPECT_FALSE(lost_master_port(outcome, seconds(3)));
  outcome = failed_with("Address already in use");
  outcome.kind = JobOutcome::Kind::signalled;  // somebody wanted the job to end
  EXPECT_FALSE(lost_master_port(outcome, seconds(3)));
  EXPECT_FALSE(lost_master_port(JobOutcome{}, seconds(3)));
}

}  // namespace
}  // namespace ddprun::launcher
