#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "worker/comm/reduce_kernels.h"
#include "worker/tensor/half.h"

namespace ddprun::comm {
namespace {

// Rounding to nearest even worked out in double with frexp: an oracle that shares no trick with half.h.
double round_to(double v, int mantissa_bits, int min_exponent, double largest) {
  if (v == 0 || std::isnan(v) || std::isinf(v)) return v;
  int e = 0;
  std::frexp(v, &e);
  const int unit = std::max(e - 1, min_exponent) - mantissa_bits;
  const double r = std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
  return std::abs(r) > largest ? std::copysign(std::numeric_limits<double>::infinity(), v) : r;
}

TEST(Half, EveryF16SurvivesTheWayThroughF32) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto h = static_cast<std::uint16_t>(bits);
    const float f = f16_to_f32(h);
    if (std::isnan(f)) {
      EXPECT_EQ(h & 0x7c00, 0x7c00);
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
    } else {
      ASSERT_EQ(f32_to_f16(f), h) << bits;
    }
  }
}

TEST(Half, RoundsToNearestEvenAsTheOracle) {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) {
    const std::uint32_t bits = random();
    float f;
    std::memcpy(&f, &bits, 4);
    if (i % 2 == 0) f = std::ldexp(static_cast<float>(random()) / 4e9f + 0.5f, static_cast<int>(random() % 45) - 27);
    if (std::isnan(f)) {
      ASSERT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
      ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f))));
      continue;
    }
    ASSERT_EQ(double(f16_to_f32(f32_to_f16(f))), round_to(f, 10, -14, 65504.0)) << f;
    ASSERT_EQ(double(bf16_to_f32(f32_to_bf16(f))), round_to(f, 7, -126, 3.3895313892515355e38)) << f;
  }
}

TEST(Half, TiesGoToEven) {
  EXPECT_EQ(f16_to_f32(f32_to_f16(2049.0f)), 2048.0f);
  EXPECT_EQ(f16_to_f32(f32_to_f16(2051.0f)), 2052.0f);
  EXPECT_EQ(f16_to_f32(f32_to_f16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(f16_to_f32(f32_to_f16(65520.0f))));
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(257.0f)), 256.0f);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(259.0f)), 260.0f);
}

// All sources in one order, one destination apart.
std::vector<float> reduced(const std::vector<std::vector<float>>& sources, Reduce op, int divisor) {
  std::vector<const void*> from;
  for (const auto& s : sources) from.push_back(s.data());
  std::vector<float> result(sources[0].size());
  void* to[] = {result.data()};
  reduce(ReduceArgs{from.data(), from.size(), to, 1, result.size(), DType::f32, op, divisor});
  return result;
}

TEST(ReduceKernels, PowersOfTwoAddPairwiseOthersInOrder) {
  std::mt19937 random(1);
  for (std::size_t n : {1u, 2u, 3u, 4u, 5u, 7u, 8u}) {
    std::vector<std::vector<float>> s(n, std::vector<float>(3001));
    for (auto& v : s) {
      for (float& f : v) f = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 30) - 40);
    }
    const auto got = reduced(s, Reduce::sum, 1);
    for (std::size_t i = 0; i < got.size(); ++i) {
      float expected = s[0][i];
      if (n == 4) {
        expected = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
      } else if (n == 8) {
        expected = ((s[0][i] + s[1][i]) + (s[2][i] + s[3][i])) + ((s[4][i] + s[5][i]) + (s[6][i] + s[7][i]));
      } else {
        for (std::size_t k = 1; k < n; ++k) expected = expected + s[k][i];
      }
      ASSERT_EQ(got[i], expected) << n << " sources, element " << i;
    }
  }
}

TEST(ReduceKernels, InPlaceAndApartGiveTheSameBits) {
  std::mt19937 random(2);
  for (std::size_t n : {2u, 3u, 4u}) {
    for (int divisor : {1, 2, 3}) {
      std::vector<std::vector<float>> s(n, std::vector<float>(2500));
      for (auto& v : s) {
        for (float& f : v) f = static_cast<float>(random()) * 1e-6f;
      }
      const auto apart = reduced(s, Reduce::avg, divisor);
      std::vector<const void*> from;
      std::vector<void*> to;
      for (auto& v : s) {
        from.push_back(v.data());
        to.push_back(v.data());
      }
      reduce(ReduceArgs{from.data(), n, to.data(), n, 2500, DType::f32, Reduce::avg, divisor});
      for (const auto& v : s) EXPECT_EQ(std::memcmp(v.data(), apart.data(), 2500 * 4), 0);
    }
  }
}

TEST(ReduceKernels, MinAndMaxKeepNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Reduce op : {Reduce::min, Reduce::max}) {
    EXPECT_TRUE(std::isnan(reduced({{nan}, {1}}, op, 1)[0]));
    EXPECT_TRUE(std::isnan(reduced({{1}, {nan}}, op, 1)[0]));
    EXPECT_TRUE(std::isnan(reduced({{1}, {2}, {nan}}, op, 1)[0]));
  }
  EXPECT_EQ(reduced({{1}, {-2}, {5}}, Reduce::min, 1)[0], -2);
  EXPECT_EQ(reduced({{1}, {-2}, {5}}, Reduce::max, 1)[0], 5);
}

TEST(ReduceKernels, SixteenBitTypesAddUpInF32) {
  // 2048 + 1 + 1 + 1 + 1: f16 arithmetic would stay at 2048; bf16 likewise at 256.
  for (const auto& [dtype, base] : {std::pair{DType::f16, 2048.0f}, std::pair{DType::bf16, 256.0f}}) {
    const auto bits = [dtype = dtype](float f) { return dtype == DType::f16 ? f32_to_f16(f) : f32_to_bf16(f); };
    const std::uint16_t a = bits(base), one = bits(1);
    const void* from[] = {&a, &one, &one, &one, &one};
    std::uint16_t result = 0;
    void* to[] = {&result};
    reduce(ReduceArgs{from, 5, to, 1, 1, dtype, Reduce::sum, 1});
    EXPECT_EQ(result, bits(base + 4));
  }
}

TEST(ReduceKernels, SumThatOverflowsF16IsFineWhenItsMeanFits) {
  const std::uint16_t big = f32_to_f16(60000.0f);
  const void* from[] = {&big, &big};
  std::uint16_t result = 0;
  void* to[] = {&result};
  reduce(ReduceArgs{from, 2, to, 1, 1, DType::f16, Reduce::avg, 2});
  EXPECT_EQ(f16_to_f32(result), 60000.0f - 0.0f);
}

TEST(ReduceKernels, IntegersWrapAndDivideTowardsZero) {
  const std::int32_t a = std::numeric_limits<std::int32_t>::max(), b = 1, c = -7, d = 0;
  std::int32_t result = 0;
  void* to[] = {&result};
  const void* overflow[] = {&a, &b};
  reduce(ReduceArgs{overflow, 2, to, 1, 1, DType::i32, Reduce::sum, 1});
  EXPECT_EQ(result, std::numeric_limits<std::int32_t>::min());
  const void* mean[] = {&c, &d};
  reduce(ReduceArgs{mean, 2, to, 1, 1, DType::i32, Reduce::avg, 2});
  EXPECT_EQ(result, -3);
}

TEST(ReduceKernels, NarrowAndWidenRoundAsHalf) {
  std::vector<float> values = {0.1f, -3.14159f, 1e-8f, 70000.0f, 65504.0f, -0.0f, 1.0f / 3};
  for (DType type : {DType::f16, DType::bf16}) {
    std::vector<std::uint16_t> small(values.size());
    std::vector<float> back(values.size());
    narrow(values.data(), small.data(), values.size(), type, 0.5f);
    widen(small.data(), back.data(), values.size(), type, 2.0f);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float half = values[i] * 0.5f;
      EXPECT_EQ(small[i], type == DType::f16 ? f32_to_f16(half) : f32_to_bf16(half));
      EXPECT_EQ(back[i], 2.0f * (type == DType::f16 ? f16_to_f32(small[i]) : bf16_to_f32(small[i])));
    }
  }
}

}  // namespace
}  // namespace ddprun::comm
