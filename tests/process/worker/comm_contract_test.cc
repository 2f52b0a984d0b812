#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tests/support/comm_ranks.h"
#include "worker/tensor/half.h"

// What every communicator must do, on every implementation that can run here.
namespace ddprun::comm {
namespace {

using testing::Kind;
using testing::RankContext;
constexpr std::chrono::milliseconds kPatience{50'000};

class CommContract : public ::testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  // Runs `body` on every rank with a communicator; expects no complaint.
  template <typename Body>
  void on_all_ranks(Body body) {
    const auto [kind, size] = GetParam();
    const Kind chosen = kind;
    const auto outcomes = testing::run_ranks(size, [&](RankContext& context) -> std::string {
      auto communicator = testing::make_test_communicator(chosen, context, kPatience);
      RANK_OK(communicator);
      return body(**communicator);
    });
    EXPECT_EQ(testing::problems(outcomes), "");
  }
};

// Integers that every type holds exactly, also their sums.
int value_of(int rank, std::size_t i) {
  return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 13) - 5;
}

template <typename T>
T make(int v) {
  return static_cast<T>(v);
}
struct Bf16 {
  std::uint16_t bits;
  bool operator==(const Bf16&) const = default;
};
struct F16 {
  std::uint16_t bits;
  bool operator==(const F16&) const = default;
};
template <>
Bf16 make<Bf16>(int v) {
  return Bf16{f32_to_bf16(static_cast<float>(v))};
}
template <>
F16 make<F16>(int v) {
  return F16{f32_to_f16(static_cast<float>(v))};
}

int combined(Reduce op, int size, std::size_t i) {
  int result = value_of(0, i);
  for (int r = 1; r < size; ++r) {
    const int v = value_of(r, i);
    result = op == Reduce::min ? std::min(result, v) : op == Reduce::max ? std::max(result, v) : result + v;
  }
  return result;
}

// Sizes around every border: nothing, one, odd, a cache line, the flat limit, several segments.
const std::size_t kCounts[] = {0, 1, 3, 16, 17, 1000, 4096, 4097, 20011, 70001};

template <typename T>
std::string reduce_all_counts(Communicator& c, DType dtype, bool owned) {
  for (Reduce op : {Reduce::sum, Reduce::min, Reduce::max}) {
    for (std::size_t count : kCounts) {
      std::vector<T> foreign(count);
      T* data = foreign.data();
      if (owned) {
        auto memory = c.allocate(count * sizeof(T));
        RANK_OK(memory);
        data = reinterpret_cast<T*>(*memory);
      }
      for (std::size_t i = 0; i < count; ++i) data[i] = make<T>(value_of(c.rank(), i));
      RANK_OK(c.all_reduce(Block{data, count, dtype}, op).wait());
      for (std::size_t i = 0; i < count; ++i) {
        if (!(data[i] == make<T>(combined(op, c.world_size(), i)))) {
          return std::string(name_of(dtype)) + " " + name_of(op) + " of " + std::to_string(count) + " is wrong at " +
                 std::to_string(i);
        }
      }
    }
  }
  return "";
}

std::string reduce_all_types(Communicator& c, bool owned) {
  std::string text = reduce_all_counts<float>(c, DType::f32, owned);
  if (text.empty()) text = reduce_all_counts<double>(c, DType::f64, owned);
  if (text.empty()) text = reduce_all_counts<Bf16>(c, DType::bf16, owned);
  if (text.empty()) text = reduce_all_counts<F16>(c, DType::f16, owned);
  if (text.empty()) text = reduce_all_counts<std::int32_t>(c, DType::i32, owned);
  if (text.empty()) text = reduce_all_counts<std::int64_t>(c, DType::i64, owned);
  return text;
}

TEST_P(CommContract, AllReduceIsRightForAllTypesInOwnedMemory) {
  on_all_ranks([](Communicator& c) { return reduce_all_types(c, true); });
}

TEST_P(CommContract, AllReduceIsRightForAllTypesInForeignMemory) {
  on_all_ranks([](Communicator& c) { return reduce_all_types(c, false); });
}

// More than one segment on each connection of a ring, and an odd end.
TEST_P(CommContract, LargeTensorsOfOddSize) {
  on_all_ranks([](Communicator& c) -> std::string {
    constexpr std::size_t kCount = 1'700'003;
    auto memory = c.allocate(kCount * sizeof(float));
    RANK_OK(memory);
    std::vector<float> foreign(kCount);
    for (float* data : {reinterpret_cast<float*>(*memory), foreign.data()}) {
      for (std::size_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(value_of(c.rank(), i));
      RANK_OK(c.all_reduce(Block{data, kCount, DType::f32}, Reduce::sum).wait());
      for (std::size_t i = 0; i < kCount; ++i) {
        RANK_CHECK(data[i] == static_cast<float>(combined(Reduce::sum, c.world_size(), i)));
      }
    }
    return "";
  });
}

TEST_P(CommContract, OwnedOnOneRankForeignOnAnother) {
  on_all_ranks([](Communicator& c) -> std::string {
    constexpr std::size_t kCount = 50'000;
    auto memory = c.allocate(kCount * sizeof(float));
    RANK_OK(memory);
    std::vector<float> foreign(kCount);
    float* data = c.rank() % 2 == 0 ? reinterpret_cast<float*>(*memory) : foreign.data();
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(value_of(c.rank(), i));
      RANK_OK(c.all_reduce(Block{data, kCount, DType::f32}, Reduce::sum).wait());
      for (std::size_t i = 0; i < kCount; ++i) {
        RANK_CHECK(data[i] == static_cast<float>(combined(Reduce::sum, c.world_size(), i)));
      }
    }
    return "";
  });
}

TEST_P(CommContract, AverageDividesOnce) {
  on_all_ranks([](Communicator& c) -> std::string {
    for (std::size_t count : {std::size_t{5}, std::size_t{30'000}}) {
      std::vector<double> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = value_of(c.rank(), i);
      std::vector<std::int32_t> whole(count, c.rank());
      RANK_OK(c.all_reduce(Block{values.data(), count, DType::f64}, Reduce::avg).wait());
      RANK_OK(c.all_reduce(Block{whole.data(), count, DType::i32}, Reduce::avg).wait());
      const int n = c.world_size();
      for (std::size_t i = 0; i < count; ++i) {
        RANK_CHECK(std::abs(values[i] - double(combined(Reduce::sum, n, i)) / n) < 1e-12);
        RANK_CHECK(whole[i] == n * (n - 1) / 2 / n);
      }
    }
    return "";
  });
}

TEST_P(CommContract, SumsAreTheSameBitsOnEveryRankInEveryMemoryAndEveryRun) {
  on_all_ranks([](Communicator& c) -> std::string {
    constexpr std::size_t kCount = 40'000;
    auto memory = c.allocate(kCount * sizeof(float));
    RANK_OK(memory);
    auto* owned = reinterpret_cast<float*>(*memory);
    std::vector<float> foreign(kCount), first;
    for (int run = 0; run < 3; ++run) {
      std::mt19937 random(static_cast<unsigned>(c.rank()));
      for (std::size_t i = 0; i < kCount; ++i) {
        owned[i] = foreign[i] = std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 40) - 60);
      }
      RANK_OK(c.all_reduce(Block{owned, kCount, DType::f32}, Reduce::avg).wait());
      RANK_OK(c.all_reduce(Block{foreign.data(), kCount, DType::f32}, Reduce::avg).wait());
      RANK_CHECK(std::memcmp(owned, foreign.data(), kCount * sizeof(float)) == 0);
      if (run == 0) first.assign(owned, owned + kCount);
      RANK_CHECK(std::memcmp(owned, first.data(), kCount * sizeof(float)) == 0);
      std::vector<float> all(kCount * static_cast<std::size_t>(c.world_size()));
      RANK_OK(c.all_gather(Block{owned, kCount, DType::f32}, Block{all.data(), all.size(), DType::f32}).wait());
      for (int r = 0; r < c.world_size(); ++r) {
        RANK_CHECK(std::memcmp(all.data() + static_cast<std::size_t>(r) * kCount, owned, kCount * sizeof(float)) == 0);
      }
    }
    return "";
  });
}

TEST_P(CommContract, GatherScatterAndBroadcast) {
  on_all_ranks([](Communicator& c) -> std::string {
    const auto world = static_cast<std::size_t>(c.world_size());
    const auto me = static_cast<std::size_t>(c.rank());
    for (bool owned : {false, true}) {
      for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{513}, std::size_t{30'001}}) {
        std::vector<std::int32_t> memory(world * count), mine(count);
        std::int32_t* all = memory.data();
        if (owned) {
          auto place = c.allocate(world * count * 4);
          RANK_OK(place);
          all = reinterpret_cast<std::int32_t*>(*place);
        }
        const Block all_block{all, world * count, DType::i32}, mine_block{mine.data(), count, DType::i32};
        for (std::size_t i = 0; i < count; ++i) mine[i] = value_of(c.rank(), i);
        RANK_OK(c.all_gather(mine_block, all_block).wait());
        for (std::size_t r = 0; r < world; ++r) {
          for (std::size_t i = 0; i < count; ++i) RANK_CHECK(all[r * count + i] == value_of(static_cast<int>(r), i));
        }
        for (std::size_t i = 0; i < world * count; ++i) all[i] = value_of(c.rank(), i);
        RANK_OK(c.reduce_scatter(all_block, mine_block, Reduce::sum).wait());
        for (std::size_t i = 0; i < count; ++i) {
          RANK_CHECK(mine[i] == combined(Reduce::sum, c.world_size(), me * count + i));
        }
        for (int root = 0; root < c.world_size(); ++root) {
          for (std::size_t i = 0; i < world * count; ++i) all[i] = c.rank() == root ? value_of(root, i) : -99;
          RANK_OK(c.broadcast(all_block, root).wait());
          for (std::size_t i = 0; i < world * count; ++i) RANK_CHECK(all[i] == value_of(root, i));
        }
        RANK_OK(c.barrier());
      }
    }
    return "";
  });
}

TEST_P(CommContract, RaggedGather) {
  on_all_ranks([](Communicator& c) -> std::string {
    const std::string mine(static_cast<std::size_t>(c.rank() * 5), static_cast<char>('a' + c.rank()));
    std::vector<std::size_t> sizes;
    auto all = all_gather_concat(c, std::as_bytes(std::span(mine.data(), mine.size())), &sizes);
    RANK_OK(all);
    std::string expected;
    for (int r = 0; r < c.world_size(); ++r) {
      expected += std::string(static_cast<std::size_t>(r * 5), static_cast<char>('a' + r));
      RANK_CHECK(sizes[static_cast<std::size_t>(r)] == static_cast<std::size_t>(r * 5));
    }
    RANK_CHECK(all->size() == expected.size());
    RANK_CHECK(expected.empty() || std::memcmp(all->data(), expected.data(), expected.size()) == 0);
    return "";
  });
}

TEST_P(CommContract, ManyInFlightEndInOrder) {
  on_all_ranks([](Communicator& c) -> std::string {
    constexpr std::size_t kTensors = 50, kCount = 700;
    std::vector<std::vector<float>> tensors(kTensors, std::vector<float>(kCount));
    std::vector<Work> works;
    for (std::size_t t = 0; t < kTensors; ++t) {
      for (std::size_t i = 0; i < kCount; ++i) tensors[t][i] = static_cast<float>(value_of(c.rank(), i + t));
      works.push_back(c.all_reduce(Block{tensors[t].data(), kCount, DType::f32}, Reduce::sum));
    }
    RANK_OK(works.back().wait());
    for (const Work& work : works) RANK_CHECK(work.done());
    for (Work& work : works) RANK_OK(work.wait());
    for (std::size_t t = 0; t < kTensors; ++t) {
      for (std::size_t i = 0; i < kCount; ++i) {
        RANK_CHECK(tensors[t][i] == static_cast<float>(combined(Reduce::sum, c.world_size(), i + t)));
      }
    }
    RANK_CHECK(c.sequence() == kTensors);
    RANK_CHECK(c.dropped_handles() == 0);
    RANK_CHECK(c.live_works() == kTensors);
    works.clear();
    RANK_CHECK(c.live_works() == 0);
    return "";
  });
}

TEST_P(CommContract, DroppedHandleIsCounted) {
  on_all_ranks([](Communicator& c) -> std::string {
    float value = 1;
    { Work work = c.all_reduce(Block{&value, 1, DType::f32}, Reduce::sum); }
    RANK_OK(c.barrier());
    RANK_CHECK(c.dropped_handles() == 1);
    return "";
  });
}

// Values of very different sizes, so that another order of the sums would give other bits.
template <typename T>
T rough(std::mt19937& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>((std::uint64_t{random()} << 32) | random());  // sums wrap round
  } else {
    return std::ldexp(static_cast<T>(random()) - T(2e9), static_cast<int>(random() % 40) - 60);
  }
}

std::uint64_t hash_of(const void* data, std::size_t size) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ULL;
  return hash;
}

// Hashes of sums and means of two sizes, foreign and owned.
template <typename T>
std::string hashes(Communicator& c, DType dtype) {
  std::string text;
  for (std::size_t count : {std::size_t{100}, std::size_t{50'000}}) {
    for (Reduce op : {Reduce::sum, Reduce::avg}) {
      auto memory = c.allocate(count * sizeof(T));
      RANK_OK(memory);
      std::mt19937 random(static_cast<unsigned>(c.rank()));
      std::vector<T> foreign(count);
      for (T& v : foreign) v = rough<T>(random);
      std::memcpy(*memory, foreign.data(), count * sizeof(T));
      RANK_OK(c.all_reduce(Block{foreign.data(), count, dtype}, op).wait());
      RANK_OK(c.all_reduce(Block{*memory, count, dtype}, op).wait());
      text += " " + std::to_string(hash_of(foreign.data(), count * sizeof(T)));
      text += " " + std::to_string(hash_of(*memory, count * sizeof(T)));
    }
  }
  return text;
}

// 4 ranks on one host and 2 + 2 ranks on two hosts.
TEST(CommBits, OneHostOrTwoHostsGiveTheSameBits) {
  std::vector<std::string> results;
  for (Kind kind : {Kind::shm, Kind::two_hosts}) {
    const auto outcomes = testing::run_ranks(4, [kind](RankContext& context) -> std::string {
      auto made = testing::make_test_communicator(kind, context, kPatience);
      RANK_OK(made);
      Communicator& c = **made;
      return "f32" + hashes<float>(c, DType::f32) + " f64" + hashes<double>(c, DType::f64) + " i32" +
             hashes<std::int32_t>(c, DType::i32) + " i64" + hashes<std::int64_t>(c, DType::i64);
    });
    for (const auto& o : outcomes) results.push_back(o.text);
  }
  EXPECT_THAT(results[0], ::testing::HasSubstr("i64 "));
  for (const std::string& r : results) EXPECT_EQ(r, results[0]);
}

// What is promised for 16-bit types: each layout gives the same bits on every rank and in every run; layouts may differ
// by one rounding for each hop between hosts. Here: the exact sum (of values that f32 adds exactly) against both.
TEST(CommBits, SixteenBitTypesAreRoundedOnceOnAHostAndOnceForEachHop) {
  constexpr std::size_t kCount = 5'000;
  for (Kind kind : {Kind::shm, Kind::two_hosts, Kind::tcp}) {
    const auto outcomes = testing::run_ranks(4, [kind](RankContext& context) -> std::string {
      auto made = testing::make_test_communicator(kind, context, kPatience);
      RANK_OK(made);
      // Steps of 2^-6 below 16, so that sums need more digits than bf16 has and fewer than f32.
      const auto value = [](int rank, std::size_t i) {
        return bf16_to_f32(
            f32_to_bf16(static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 411) % 1000) / 64));
      };
      std::string first;
      for (int run = 0; run < 2; ++run) {
        std::vector<std::uint16_t> data(kCount);
        for (std::size_t i = 0; i < kCount; ++i) data[i] = f32_to_bf16(value(context.rank, i));
        RANK_OK((*made)->all_reduce(Block{data.data(), kCount, DType::bf16}, Reduce::sum).wait());
        // One rounding of bf16 is at most 2^-8 of the value.
        const float roundings = kind == Kind::shm ? 1 : kind == Kind::two_hosts ? 2 : 3;
        for (std::size_t i = 0; i < kCount; ++i) {
          float exact = 0;
          for (int r = 0; r < 4; ++r) exact += value(r, i);
          RANK_CHECK(std::abs(bf16_to_f32(data[i]) - exact) <= exact * roundings * 0x1.02p-8f);
          if (kind == Kind::shm) RANK_CHECK(data[i] == f32_to_bf16(exact));
        }
        const std::string text = std::to_string(hash_of(data.data(), kCount * 2));
        if (run == 0) first = text;
        RANK_CHECK(text == first);
        std::int64_t hash = static_cast<std::int64_t>(hash_of(data.data(), kCount * 2)), low = hash;
        RANK_OK((*made)->all_reduce(Block{&low, 1, DType::i64}, Reduce::min).wait());
        RANK_OK((*made)->all_reduce(Block{&hash, 1, DType::i64}, Reduce::max).wait());
        RANK_CHECK(low == hash);
      }
      return "";
    });
    EXPECT_EQ(testing::problems(outcomes), "") << testing::name_of(kind);
  }
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<Kind, int>>& info) {
  return std::string(testing::name_of(std::get<0>(info.param))) + "_" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, CommContract,
                         ::testing::Combine(::testing::Values(Kind::shm), ::testing::Values(1, 2, 3, 4, 8)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Tcp, CommContract,
                         ::testing::Combine(::testing::Values(Kind::tcp), ::testing::Values(1, 2, 3, 4, 8)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(TwoHosts, CommContract,
                         ::testing::Combine(::testing::Values(Kind::two_hosts), ::testing::Values(2, 4, 5, 8)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(UnevenHosts, CommContract,
                         ::testing::Combine(::testing::Values(Kind::uneven_hosts), ::testing::Values(3, 4)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(SharedMemoryThreads, CommContract,
                         ::testing::Combine(::testing::Values(Kind::shm_threads), ::testing::Values(2, 3)),
                         name_of_case);

}  // namespace
}  // namespace ddprun::comm
