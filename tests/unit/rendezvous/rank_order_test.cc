#include "rendezvous/membership/rank_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace ddprun::rendezvous {
namespace {

RankCandidate node(std::string_view host, std::uint64_t arrival) {
  RankCandidate c;
  c.host = host;
  c.arrival = arrival;
  return c;
}

std::string hosts_in_order(const std::vector<RankCandidate>& nodes) {
  std::string text;
  for (const std::size_t i : rank_order(nodes)) text += (text.empty() ? "" : " ") + std::string(nodes[i].host);
  return text;
}

TEST(NaturalLess, ComparesRunsOfDigitsAsNumbers) {
  EXPECT_TRUE(natural_less("node2", "node10"));
  EXPECT_FALSE(natural_less("node10", "node2"));
  EXPECT_TRUE(natural_less("127.0.0.9", "127.0.0.10"));
  EXPECT_TRUE(natural_less("a", "a1"));
  EXPECT_TRUE(natural_less("a007", "a8"));
  EXPECT_FALSE(natural_less("a", "a"));
  EXPECT_TRUE(natural_less("r1n99999999999999999999999", "r1n100000000000000000000000"));
  EXPECT_NE(natural_less("a01", "a1"), natural_less("a1", "a01"));  // a strict order all the same
}

TEST(RankOrder, SortsNewNodesByNaturalNameThenArrival) {
  EXPECT_EQ(hosts_in_order({node("node10", 1), node("node2", 2), node("node1", 3)}), "node1 node2 node10");
  const std::vector<RankCandidate> same = {node("h", 5), node("h", 2), node("h", 9)};
  EXPECT_EQ(rank_order(same), (std::vector<std::size_t>{1, 0, 2}));
}

TEST(RankOrder, KeepsPlacesAndFillsTheHoleOfALostNode) {
  auto a = node("a", 1), c = node("c", 3), spare = node("zz", 4);
  a.place = 0;
  c.place = 2;  // b, place 1, was lost
  EXPECT_EQ(hosts_in_order({spare, c, a}), "a zz c");
}

TEST(RankOrder, ClosesUpWhenNobodyFillsTheHole) {
  auto b = node("b", 2), d = node("d", 4);
  b.place = 1;
  d.place = 3;
  EXPECT_EQ(hosts_in_order({d, b}), "b d");
}

TEST(RankOrder, PutsNeighboursOfATopologyKeyTogether) {
  auto a = node("a", 1), b = node("b", 2), x = node("x", 3), y = node("y", 4), z = node("z", 5);
  a.topology_key = x.topology_key = "rack1";
  b.topology_key = y.topology_key = "rack2";
  EXPECT_EQ(hosts_in_order({a, b, x, y, z}), "z a x b y");
  a.place = 0;
  b.place = 1;
  EXPECT_EQ(hosts_in_order({a, b, x, y, z}), "a x b y z");
}

TEST(RankOrder, PrefersTheSameKeyForAHole) {
  auto a = node("a", 1), c = node("c", 3), other = node("b-other", 4), same = node("z-same", 5);
  a.place = 0;
  a.topology_key = "r1";
  c.place = 2;
  c.topology_key = "r2";
  other.topology_key = "r1";
  same.topology_key = "r2";
  EXPECT_EQ(hosts_in_order({a, c, other, same}), "a b-other z-same c");
}

TEST(RankOrder, LetsHintsWin) {
  auto a = node("a", 1), b = node("b", 2), c = node("c", 3);
  a.hint = 2;
  b.hint = 0;
  c.place = 0;
  EXPECT_EQ(hosts_in_order({a, b, c}), "b a c");
}

TEST(RankOrder, IsAPermutationForAnyInput) {
  std::mt19937 random(7);
  const std::vector<std::string> keys = {"", "r1", "r2", "r3"};
  for (int trial = 0; trial < 2'000; ++trial) {
    std::vector<RankCandidate> nodes(random() % 12);
    std::vector<std::string> hosts(nodes.size());
    std::vector<std::int64_t> places(40);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      hosts[i] = "n" + std::to_string(random() % 5);
      nodes[i].host = hosts[i];
      nodes[i].arrival = i;
      nodes[i].topology_key = keys[random() % keys.size()];
      if (random() % 2 == 0) nodes[i].place = places[i];
      if (random() % 4 == 0) nodes[i].hint = static_cast<std::int64_t>(random() % 4);
    }
    auto order = rank_order(nodes);
    // Survivors without hints keep their order.
    std::int64_t last = -1;
    for (const std::size_t i : order) {
      if (nodes[i].hint || !nodes[i].place) continue;
      EXPECT_GT(*nodes[i].place, last);
      last = *nodes[i].place;
    }
    std::sort(order.begin(), order.end());
    std::vector<std::size_t> all(nodes.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    ASSERT_EQ(order, all);
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
