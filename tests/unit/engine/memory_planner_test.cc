#include "worker/engine/memory_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ddprun::engine {
namespace {

TEST(MemoryPlanner, PiecesThatNeverMeetShareMemory) {
  const std::vector<Lifetime> lives = {{640, 0, 1}, {640, 2, 3}, {64, 1, 2}};
  const Placement p = place(lives);
  EXPECT_EQ(p.offsets[0], p.offsets[1]);
  EXPECT_EQ(p.total_bytes, 704u);
}

TEST(MemoryPlanner, NoOverlapInRandomSchedulesAndNeverWorseThanNoSharing) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<Lifetime> lives;
    std::size_t sum = 0;
    for (int i = 0; i < 60; ++i) {
      const std::uint32_t first = static_cast<std::uint32_t>(random() % 40),
                          length = static_cast<std::uint32_t>(random() % 10);
      lives.push_back({random() % 5000, first, first + length});
      sum += (lives.back().size_bytes + 63) / 64 * 64;
    }
    const Placement p = place(lives);
    EXPECT_LE(p.total_bytes, sum);
    for (std::size_t a = 0; a < lives.size(); ++a) {
      EXPECT_EQ(p.offsets[a] % 64, 0u);
      EXPECT_LE(p.offsets[a] + lives[a].size_bytes, p.total_bytes);
      for (std::size_t b = 0; b < a; ++b) {
        const bool meet = lives[a].first <= lives[b].last && lives[b].first <= lives[a].last;
        const bool overlap =
            p.offsets[a] < p.offsets[b] + lives[b].size_bytes && p.offsets[b] < p.offsets[a] + lives[a].size_bytes;
        EXPECT_FALSE(meet && overlap && lives[a].size_bytes > 0 && lives[b].size_bytes > 0);
      }
    }
  }
}

}  // namespace
}  // namespace ddprun::engine
