#include "rendezvous/membership/membership.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "tests/support/story.h"
#include "tests/unit/rendezvous/membership_scenario.h"

namespace ddprun::rendezvous {
namespace {

std::vector<std::filesystem::path> stories() { return test::story_files("membership"); }

class MembershipScenarios : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(MembershipScenarios, BehavesAsWritten) {
  MembershipScenario scenario;
  test::check_story(GetParam(), [&scenario](const std::string& command) { return scenario.run(command); });
}

INSTANTIATE_TEST_SUITE_P(Files, MembershipScenarios, testing::ValuesIn(stories()),
                         [](const auto& file) { return test::story_name(file.param); });

TEST(Membership, ThereAreScenarios) { EXPECT_GE(stories().size(), 15u); }

rdzv::NodeInfo node_of(int i, int total, int spares) {
  rdzv::NodeInfo info;
  info.run_id = RunId("big");
  info.node_id = NodeId("node-id-" + std::to_string(i));
  info.host = "node" + std::to_string(i);
  info.address = "10.1." + std::to_string(i / 256) + "." + std::to_string(i % 256);
  info.job.nnodes_min = total / 2;
  info.job.nnodes_max = total - spares;
  info.nproc = 8;
  info.job.max_restarts = 10;
  return info;
}

// 12,500 nodes of 8 ranks: each change costs each agent one message of a bounded size, whatever the size of the world.
TEST(Membership, SendsABoundedNumberOfBytesPerAgentAndChangeAtTwelveThousandNodes) {
  constexpr int kNodes = 12'500;
  constexpr int kSpares = 100;
  constexpr std::size_t kMost = 512;
  TimePoint now(std::chrono::seconds(1000));
  Membership m{RunId("big")};
  std::map<std::string, std::size_t> messages;
  const auto take = [&](const Actions& actions) {
    for (const Action& action : actions) {
      if (const auto* send = std::get_if<Send>(&action)) {
        ++messages[send->node.value];
        EXPECT_LE(rdzv::encode(send->message).size(), kMost);
      }
    }
  };
  const auto join_all = [&](Round last) {
    for (int i = 0; i < kNodes; ++i) {
      rdzv::Join join;
      join.node = node_of(i, kNodes, kSpares);
      // Later only those that were told to: neither the lost nor the spares.
      if (last.value > 0 && (!m.knows(join.node.node_id) || i >= kNodes - kSpares)) continue;
      join.last_round = last;
      take(m.on(join, now));
    }
  };
  join_all(Round(0));
  ASSERT_EQ(m.round(), Round(1));
  ASSERT_EQ(m.count(rdzv::MemberState::running), static_cast<std::size_t>(kNodes - kSpares));
  EXPECT_EQ(m.status(now).world_size, (kNodes - kSpares) * 8);
  for (const auto& [node, count] : messages) EXPECT_EQ(count, 1u) << node;  // an Assignment, or "you are a spare"

  // One percent of the nodes is lost at once: everybody hears of it once, joins again, and spares fill the gaps.
  messages.clear();
  for (int i = 0; i < kNodes; i += 100) take(m.disconnected(node_of(i, kNodes, kSpares).node_id, now));
  now += Membership::kCloseGrace;
  take(m.tick(now));
  for (const auto& [node, count] : messages) EXPECT_EQ(count, 1u) << node;
  messages.clear();
  join_all(Round(1));
  ASSERT_EQ(m.round(), Round(2));
  EXPECT_EQ(m.phase(), Phase::running);
  EXPECT_EQ(m.restart_count(), 0);
  for (const auto& [node, count] : messages) EXPECT_EQ(count, 1u) << node;

  // A worker fails: counted once.
  messages.clear();
  rdzv::Failure failure;
  failure.record.round = m.round();
  failure.record.exit_code = 1;
  take(m.on(node_of(1, kNodes, kSpares).node_id, failure, now));
  EXPECT_EQ(m.restart_count(), 1);
  for (const auto& [node, count] : messages) EXPECT_EQ(count, 1u) << node;
  EXPECT_EQ(m.check(), "");
}

}  // namespace
}  // namespace ddprun::rendezvous
