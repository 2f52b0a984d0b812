#include "common/printable.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(Printable, NothingOfAnothersTextDrivesTheTerminalOrForgesALine) {
  EXPECT_EQ(printable("train.py\r"), "train.py\\r");
  EXPECT_EQ(printable("a\nb\tc"), "a\\nb\\tc");
  EXPECT_EQ(printable(std::string_view("\x1b]0;t\x07\0\x7f", 8)), "\\x1b]0;t\\x07\\x00\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b"
            "2J");  // U+009B is CSI
  EXPECT_EQ(printable("\x9b"
                      "2J \xff"),
            "\\x9b"
            "2J \\xff");  // and so is the byte, in some terminals
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "txt"),
            "\\xe2\\x80\\xae"
            "txt");  // right to left from here
  EXPECT_EQ(printable("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \\x"), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \\x");
  EXPECT_EQ(printable_lines("a\n\tb\r\n"), "a\n\tb\\r\n");
}

TEST(Printable, ColoursOfAWorkerAreLeftOutAndOtherSequencesShown) {
  EXPECT_EQ(printable_without_colours("\x1b[1;31mError\x1b[0m: no \x1b[2J\x1b["), "Error: no \\x1b[2J\\x1b[");
}

TEST(Printable, ACharacterThatHasOnlyBegunIsLeftOut) {
  EXPECT_EQ(without_torn_end("ab\xe2\x82"), "ab");
  EXPECT_EQ(without_torn_end("ab\xf0\x9f\x98"), "ab");
  EXPECT_EQ(without_torn_end("ab\xe2\x82\xac"), "ab\xe2\x82\xac");
  EXPECT_EQ(without_torn_end("ab\xff"), "ab\xff");
  EXPECT_EQ(without_torn_end("\x82\x82\x82\x82"), "\x82\x82\x82\x82");
  EXPECT_EQ(without_torn_end(""), "");
}

}  // namespace
}  // namespace ddprun
