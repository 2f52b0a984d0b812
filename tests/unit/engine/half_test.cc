#include "worker/tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ddprun::engine {
namespace {

TEST(Half, ConversionsRoundToNearestEven) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const std::uint16_t h = static_cast<std::uint16_t>(bits);
    if (std::isnan(f16_to_f32(h))) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f16_to_f32(h)))));
    } else {
      ASSERT_EQ(f32_to_f16(f16_to_f32(h)), h) << bits;
    }
    if (std::isnan(bf16_to_f32(h))) continue;
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(h)), h) << bits;
  }
  EXPECT_EQ(f32_to_f16(1.0f), 0x3c00);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);  // rounds up to inf
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(f32_to_f16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
}

}  // namespace
}  // namespace ddprun::engine
