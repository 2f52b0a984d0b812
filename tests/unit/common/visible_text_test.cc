#include "common/visible_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(VisibleText, ControlCharactersAreWritten) {
  EXPECT_EQ(visible("a b\u00e9"), "a b\u00e9");
  EXPECT_EQ(visible("2\r"), "2\\r");
  EXPECT_EQ(visible("a\nb\tc\x1b[2J\x7f"), "a\\nb\\tc\\x1b[2J\\x7f");
  EXPECT_EQ(visible(std::string_view("\0", 1)), "\\x00");
}

TEST(VisibleText, ACarriageReturnComesWithItsCause) {
  EXPECT_EQ(visible_sentence("no 'x'"), "no 'x'");
  EXPECT_THAT(visible_sentence("no 'x\r'"),
              testing::AllOf(testing::StartsWith("no 'x\\r' ("), testing::HasSubstr("Windows line ends")));
}

}  // namespace
}  // namespace ddprun
