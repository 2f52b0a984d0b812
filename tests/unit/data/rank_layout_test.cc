#include "worker/ranks/rank_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::int64_t> ranks(const RankLayout& layout) {
  std::vector<std::int64_t> out;
  for (const auto& place : layout.tasks) out.push_back(place.rank);
  return out;
}

TEST(RankLayout, TasksInBlocksKeepTheirNumbers) {
  const auto layout = lay_out({{"a", 0, ""}, {"a", 1, "127.0.0.1"}, {"b", 0, "10.0.0.1"}}).value();
  EXPECT_THAT(ranks(layout), ElementsAre(0, 1, 2));
  EXPECT_EQ(layout.hosts, 2);
  EXPECT_EQ(layout.store_host, "10.0.0.1");
  EXPECT_EQ(layout.store_group, 0);
  EXPECT_EQ(layout.tasks[1].local_rank, 1);
  EXPECT_EQ(layout.tasks[1].local_world_size, 2);
  EXPECT_EQ(layout.tasks[2].group_rank, 1);
}

TEST(RankLayout, TasksInTurnsAreRenumbered) {
  const auto layout =
      lay_out({{"a", 0, ""}, {"b", 0, "10.0.0.1"}, {"a", 1, "127.0.1.1"}, {"b", 1, "10.0.0.1"}}).value();
  EXPECT_THAT(ranks(layout), ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(layout.store_host, "10.0.0.1");  // not what the name is on its own host
}

TEST(RankLayout, TheStoreMayBeOnAnotherHostThanTaskZero) {
  const auto layout = lay_out({{"b", 0, "10.0.0.1"}, {"a", 0, ""}}).value();
  EXPECT_EQ(layout.store_group, 1);
  EXPECT_EQ(layout.store_host, "10.0.0.1");
}

TEST(RankLayout, HostsOfOneNameAreSaid) {
  const auto layout = lay_out({{"localhost", 0, ""}, {"localhost", 0, "10.0.0.1"}});
  ASSERT_FALSE(layout);
  EXPECT_THAT(layout.error().message(), HasSubstr("tasks 0 and 1 are both number 0 of a host called localhost"));
}

TEST(RankLayout, GoesOverTheStoreAndBack) {
  const auto layout = lay_out({{"a", 0, ""}, {"b", 0, "fd00::1"}}).value();
  const auto back = parse_rank_layout(to_text(layout)).value();
  EXPECT_EQ(ranks(back), ranks(layout));
  EXPECT_EQ(back.store_host, "fd00::1");
  EXPECT_EQ(parse_task_place(to_text(TaskPlace{"h", 3, ""})).value().store_host, "");
  for (const char* text : {"", "x", "2 1 0 - 0 0 1 0", "1 1 0 - 1 0 1 0", "1 1 0 - 0 1 1 0", "1 1 0 - 0 0 9 0",
                           "1 1 0 - 0 0 1 -1", "99999999999999999999 1 0 -"})
    EXPECT_FALSE(parse_rank_layout(text)) << text;
  EXPECT_FALSE(parse_task_place("0 host"));
}

}  // namespace
}  // namespace ddprun::trainer
