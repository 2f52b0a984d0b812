#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "worker/data/distributed_sampler.h"
#include "worker/data/randperm.h"

#include <zlib.h>

namespace ddprun::data {
namespace {

using Order = std::vector<std::int64_t>;

// The golden values are torch 2.15.0's (torch.randperm, DistributedSampler).
TEST(Randperm, GivesTorchsOrder) {
  EXPECT_EQ(randperm(10, 0), (Order{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
  EXPECT_EQ(randperm(10, 1), (Order{5, 6, 1, 2, 0, 8, 9, 3, 7, 4}));
  EXPECT_EQ(randperm(10, 42), (Order{2, 6, 1, 8, 4, 5, 0, 9, 3, 7}));
  EXPECT_EQ(randperm(16, 123), (Order{14, 5, 2, 0, 8, 11, 12, 9, 1, 13, 15, 6, 3, 4, 7, 10}));
  EXPECT_TRUE(randperm(0, 3).empty());
  EXPECT_EQ(randperm(1, 3), (Order{0}));
}

std::uint32_t crc_of(const Order& order) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(order.data()), static_cast<uInt>(order.size() * 8)));
}

TEST(Randperm, GivesTorchsOrderOfLargeSets) {
  EXPECT_EQ(crc_of(randperm(1000, 0)), 0x458fa90fU);
  EXPECT_EQ(crc_of(randperm(60000, 0)), 0xb049686dU);
  EXPECT_EQ(crc_of(randperm(60000, 1)), 0x0e67764dU);
  EXPECT_EQ(crc_of(randperm(1281167, 7)), 0x136615f9U);
}

TEST(Randperm, UsesTheLow32BitsOfTheSeed) { EXPECT_EQ(randperm(100, 5), randperm(100, 5 + (1ULL << 32))); }

DistributedSampler sampler(std::int64_t n, std::int64_t world, std::int64_t rank, bool drop_last, bool shuffle = true) {
  return DistributedSampler(
      {.samples = n, .world_size = world, .rank = rank, .shuffle = shuffle, .drop_last = drop_last, .seed = 0});
}

TEST(DistributedSampler, KeepsTheTailAsTorchDoes) {
  const Order expected[4][2] = {
      {{4, 3, 6}, {5, 0, 7}}, {{1, 9, 2}, {6, 8, 4}}, {{7, 0, 4}, {1, 9, 5}}, {{5, 8, 1}, {2, 3, 6}}};
  for (int rank = 0; rank < 4; ++rank) {
    for (int epoch = 0; epoch < 2; ++epoch) {
      EXPECT_EQ(sampler(10, 4, rank, false).indices(epoch), expected[rank][epoch]) << rank << " " << epoch;
    }
  }
}

TEST(DistributedSampler, DropsTheTailAsTorchDoes) {
  const Order expected[4][2] = {{{4, 3}, {5, 0}}, {{1, 9}, {6, 8}}, {{7, 0}, {1, 9}}, {{5, 8}, {2, 3}}};
  for (int rank = 0; rank < 4; ++rank) {
    for (int epoch = 0; epoch < 2; ++epoch) {
      EXPECT_EQ(sampler(10, 4, rank, true).indices(epoch), expected[rank][epoch]) << rank << " " << epoch;
    }
  }
}

// What DataLoader(batch_size=2, drop_last=True) takes of the lists above.
TEST(DistributedSampler, WholeBatchesCutEachRanksShare) {
  for (const bool drop_last : {false, true}) {
    for (int rank = 0; rank < 4; ++rank) {
      const DistributedSampler whole(
          {.samples = 10, .world_size = 4, .rank = rank, .drop_last = drop_last, .whole_batches = 2, .seed = 0});
      Order expected = sampler(10, 4, rank, drop_last).indices(1);
      expected.resize(2);
      EXPECT_EQ(whole.indices(1), expected) << rank << " " << drop_last;
      EXPECT_EQ(whole.samples_per_rank(), 2);
      EXPECT_EQ(whole.samples_per_rank(/*cursor=*/8), 0) << "2 entries that are left fill no batch of 4 ranks";
    }
  }
}

TEST(DistributedSampler, FewerSamplesThanRanks) {
  EXPECT_EQ(sampler(3, 8, 5, false).indices(0), (Order{1}));
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(sampler(3, 8, rank, false).indices(0).size(), 1U);
    EXPECT_TRUE(sampler(3, 8, rank, true).indices(0).empty());
  }
  EXPECT_TRUE(sampler(0, 2, 1, false).indices(0).empty());
}

TEST(DistributedSampler, WithoutShuffleRanksInterleave) {
  EXPECT_EQ(sampler(7, 3, 1, false, false).indices(4), (Order{1, 4, 0}));
}

// What is used before and after a change of the number of ranks is each sample once.
TEST(DistributedSampler, GoesOnFromACursorWithAnotherWorldSize) {
  constexpr std::int64_t kSamples = 1000;
  for (const std::int64_t before : {1, 2, 4, 5, 8}) {
    for (const std::int64_t after : {1, 2, 3, 4, 7, 8}) {
      Order used;
      constexpr std::int64_t kPerRank = 37;
      for (std::int64_t r = 0; r < before; ++r) {
        const Order mine = sampler(kSamples, before, r, false).indices(2);
        used.insert(used.end(), mine.begin(), mine.begin() + kPerRank);
      }
      const std::int64_t cursor = kPerRank * before;
      std::int64_t share = -1;
      for (std::int64_t r = 0; r < after; ++r) {
        const Order mine = sampler(kSamples, after, r, false).indices(2, cursor);
        used.insert(used.end(), mine.begin(), mine.end());
        EXPECT_TRUE(share < 0 || share == static_cast<std::int64_t>(mine.size()));
        share = static_cast<std::int64_t>(mine.size());
      }
      const std::set<std::int64_t> distinct(used.begin(), used.end());
      EXPECT_EQ(distinct.size(), static_cast<std::size_t>(kSamples)) << before << " to " << after;
      // Only the fill at the very end repeats anything.
      EXPECT_LT(used.size() - distinct.size(), static_cast<std::size_t>(after)) << before << " to " << after;
    }
  }
}

TEST(DistributedSampler, ACursorAtTheEndLeavesNothing) {
  EXPECT_EQ(sampler(10, 4, 0, false).samples_per_rank(12), 0);
  EXPECT_EQ(sampler(10, 4, 0, true).samples_per_rank(8), 0);
}

}  // namespace
}  // namespace ddprun::data
