#include "rendezvous/membership/tombstones.h"

#include <gtest/gtest.h>

#include <string>

#include "rendezvous/server/session_keys.h"

namespace ddprun::rendezvous {
namespace {

TEST(Tombstones, WhatManyHaveInCommonIsThereOnce) {
  Tombstones stones;
  rdzv::Shutdown shutdown;
  shutdown.reason = std::string(4000, 'r');
  const auto word = std::make_shared<const rdzv::ServerMessage>(shutdown);
  for (int i = 0; i < 100; ++i) stones.add(NodeId(std::to_string(i)), "the job had ended", word);
  ASSERT_NE(stones.find(NodeId("7")), nullptr);
  EXPECT_EQ(stones.find(NodeId("7"))->why, stones.find(NodeId("99"))->why);
  EXPECT_EQ(word.use_count(), 101);
  stones.add(NodeId("long"), std::string(5000, 'w'), nullptr);
  EXPECT_EQ(stones.find(NodeId("long"))->why->size(), Tombstones::kWhyKept);
}

TEST(Tombstones, TheOldestGoUnlessTheyWentAgain) {
  Tombstones stones;
  stones.add(NodeId("first"), "left", nullptr);
  stones.add(NodeId("second"), "left", nullptr);
  stones.erase(NodeId("first"));
  stones.add(NodeId("first"), "left again", nullptr);
  for (std::size_t i = 0; i + 1 < Tombstones::kKept; ++i) stones.add(NodeId("n" + std::to_string(i)), "left", nullptr);
  EXPECT_EQ(stones.find(NodeId("second")), nullptr);
  ASSERT_NE(stones.find(NodeId("first")), nullptr);
  EXPECT_EQ(*stones.find(NodeId("first"))->why, "left again");
}

TEST(SessionKeys, ANodeBelongsToWhoSpokeFirst) {
  SessionKeys keys;
  EXPECT_TRUE(keys.may_speak(NodeId("a"), "one"));
  EXPECT_TRUE(keys.may_speak(NodeId("a"), "one"));
  for (const char* wrong : {"", "two", "on", "onee"}) EXPECT_FALSE(keys.may_speak(NodeId("a"), wrong)) << wrong;
  EXPECT_TRUE(keys.may_speak(NodeId("b"), "two"));
}

TEST(SessionKeys, ThoseOfNodesThatHaveGoneAreForgottenWhenThereAreMany) {
  SessionKeys keys;
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_TRUE(keys.may_speak(NodeId("n" + std::to_string(i)), "k"));
    keys.forget_others(1, [](const NodeId& node) { return node == NodeId("n0"); });
  }
  EXPECT_FALSE(keys.may_speak(NodeId("n0"), "another"));
  EXPECT_TRUE(keys.may_speak(NodeId("n1"), "another"));
}

}  // namespace
}  // namespace ddprun::rendezvous
