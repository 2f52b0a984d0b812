#include "launcher/life/node_life.h"

#include <gtest/gtest.h>

#include "launcher/life/node_words.h"
#include "tests/support/story.h"
#include "tests/unit/launcher/node_life_scenario.h"

namespace ddprun::launcher {
namespace {

class NodeLifeStories : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(NodeLifeStories, BehavesAsWritten) {
  NodeLifeScenario scenario;
  test::check_story(GetParam(), [&](const std::string& command) { return scenario.run(command); });
}

INSTANTIATE_TEST_SUITE_P(Files, NodeLifeStories, testing::ValuesIn(test::story_files("node_life")),
                         [](const auto& file) { return test::story_name(file.param); });

TEST(NodeLife, ThereAreStories) { EXPECT_GE(test::story_files("node_life").size(), 40u); }

TEST(ExitCodeFor, IsTheWorkersOwnOr128PlusItsSignalAndNever75) {
  FailureRecord failure;
  failure.exit_code = 7;
  EXPECT_EQ(exit_code_for(failure), 7);
  failure.exit_code = 0;
  failure.signal = 11;
  EXPECT_EQ(exit_code_for(failure), 139);
  failure.signal = 0;
  EXPECT_EQ(exit_code_for(failure), 1);
  failure.exit_code = 75;
  EXPECT_EQ(exit_code_for(failure), 1);
}

TEST(ShutdownOutcome, ARootThatIsNoFailureOfTheListIsNone) {
  rdzv::Shutdown shutdown;
  shutdown.root = 7;
  const JobOutcome outcome = shutdown_outcome(shutdown);
  EXPECT_FALSE(outcome.root_cause);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_FALSE(outcome.reason.empty());
}

TEST(NodeWords, TimeOfDay) {
  EXPECT_EQ(time_of_day(std::chrono::system_clock::time_point(std::chrono::seconds(86'400 + 3'723))), "01:02:03 UTC");
}

}  // namespace
}  // namespace ddprun::launcher
