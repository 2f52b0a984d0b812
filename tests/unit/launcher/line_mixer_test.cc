#include "launcher/output/line_mixer.h"

#include <gtest/gtest.h>

#include "launcher/output/output.h"
#include "launcher/output/output_hub.h"

namespace ddprun::launcher {
namespace {

class Mixer {
 public:
  explicit Mixer(bool terminal) : mixer_(terminal) {}
  int add(const std::string& prefix) { return mixer_.add(prefix); }
  void feed(int stream, std::string_view bytes) { mixer_.feed(stream, bytes, clock_.now(), out_); }
  void finish(int stream) { mixer_.finish(stream, out_); }
  void wait(std::chrono::milliseconds time = std::chrono::seconds(1)) {
    clock_.advance(time);
    mixer_.flush_idle(clock_.now(), out_);
  }
  void wait_for_the_console(std::chrono::milliseconds time) {
    clock_.advance(time);
    mixer_.hold_again(clock_.now());
  }
  bool has_deadline() const { return mixer_.next_flush().has_value(); }
  std::string take() { return std::exchange(out_, {}); }

 private:
  LineMixer mixer_;
  ManualClock clock_;
  std::string out_;
};

TEST(LineMixer, PrefixStandsBeforeWholeLinesOnly) {
  Mixer mixer(false);
  const int a = mixer.add("[a]:"), b = mixer.add("[b]:");
  mixer.feed(a, "one ");
  mixer.feed(b, "zwei\ndr");
  mixer.feed(a, "line\nnext");
  EXPECT_EQ(mixer.take(), "[b]:zwei\n[a]:one line\n");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "");  // no half lines in a file, as long as they come within seconds
  mixer.feed(b, "ei\n");
  EXPECT_EQ(mixer.take(), "[b]:drei\n");
}

TEST(LineMixer, LastLineGetsANewlineOnlyWithPrefix) {
  Mixer with(false);
  const int a = with.add("[a]:");
  with.feed(a, "last words");
  with.finish(a);
  EXPECT_EQ(with.take(), "[a]:last words\n");

  Mixer without(false);
  const int b = without.add(""), c = without.add("");
  without.feed(b, "last words");
  without.finish(b);
  without.feed(c, "more\n");
  EXPECT_EQ(without.take(), "last wordsmore\n");
}

TEST(LineMixer, AloneWithoutPrefixNothingIsHeldBack) {
  Mixer mixer(false);
  const int a = mixer.add("");
  mixer.feed(a, "dot .");
  EXPECT_EQ(mixer.take(), "dot .");
}

TEST(LineMixer, SeveralWithoutPrefixKeepLinesWhole) {
  Mixer mixer(false);
  const int a = mixer.add(""), b = mixer.add("");
  mixer.feed(a, "aaa");
  mixer.feed(b, "b1\nb2\nbb");
  mixer.feed(a, "AAA\n");
  EXPECT_EQ(mixer.take(), "b1\nb2\naaaAAA\n");
  EXPECT_TRUE(mixer.has_deadline());
  mixer.wait();
  EXPECT_EQ(mixer.take(), "bb");
}

TEST(LineMixer, EmptyLinesStay) {
  Mixer mixer(false);
  const int a = mixer.add("p ");
  mixer.feed(a, "\n\nx\n");
  EXPECT_EQ(mixer.take(), "p \np \np x\n");
}

TEST(LineMixer, AProgressBarInAFileShowsWithinASecondAndItsPrefixComesAgain) {
  Mixer mixer(false);
  const int a = mixer.add("[a]:"), b = mixer.add("[b]:");
  mixer.feed(a, "\r1%");
  EXPECT_EQ(mixer.take(), "");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "\r[a]:1%");
  EXPECT_FALSE(mixer.has_deadline());
  mixer.feed(a, "\r2%\r3%");
  EXPECT_EQ(mixer.take(), "\r[a]:2%\r");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "[a]:3%");
  mixer.feed(b, "line\n");  // not glued to it
  EXPECT_EQ(mixer.take(), "\n[b]:line\n");
  mixer.feed(a, "\r4%\r\n");
  EXPECT_EQ(mixer.take(), "\r[a]:4%\r\n");
}

TEST(LineMixer, ABarThatEndsInAReturnIsStillOneLineAStream) {
  Mixer mixer(false);
  const int a = mixer.add("[a]:"), b = mixer.add("[b]:");
  mixer.feed(a, "10%\r20%\r");
  EXPECT_EQ(mixer.take(), "[a]:10%\r");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "[a]:20%\r");
  mixer.feed(b, "line\n");
  mixer.feed(a, "done\r\n");
  mixer.feed(a, "\r\n");
  EXPECT_EQ(mixer.take(), "\n[b]:line\n[a]:done\r\n[a]:\r\n");
  mixer.feed(a, "x\r");
  mixer.wait();
  mixer.feed(a, "\n");  // "\r\n" in two pieces is one end
  EXPECT_EQ(mixer.take(), "[a]:x\r\n");
}

TEST(LineMixer, WordsWithoutANewlineShowWithinSecondsInAFileToo) {
  Mixer mixer(false);
  const int a = mixer.add("[a]:"), b = mixer.add("[b]:");
  mixer.feed(a, "...");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "[a]:...");
  mixer.feed(a, "..\n");
  mixer.feed(b, "b\n");
  EXPECT_EQ(mixer.take(), "..\n[b]:b\n");
}

TEST(LineMixer, AWriterThatWaitsForTheConsoleInALineHasNotPausedThere) {
  Mixer mixer(false);
  const int a = mixer.add("[a]:");
  mixer.feed(a, "half a li");
  for (int i = 0; i < 10; ++i) mixer.wait_for_the_console(std::chrono::seconds(1));
  mixer.wait(std::chrono::milliseconds(1900));
  EXPECT_EQ(mixer.take(), "");
  mixer.feed(a, "ne\n");
  EXPECT_EQ(mixer.take(), "[a]:half a line\n");
}

TEST(LineMixer, ACharacterIsNotTornByWhatIsShownEarly) {
  Mixer mixer(true);
  const int a = mixer.add("[a]:"), b = mixer.add("[b]:");
  mixer.feed(a, "50\xe2\x82");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "[a]:50");
  mixer.feed(b, "line\n");
  mixer.feed(a, "\xac\n");
  EXPECT_EQ(mixer.take(), "\n[b]:line\n[a]:\xe2\x82\xac\n");
  mixer.feed(a, "caf\xe9");  // Latin-1: not for ever
  mixer.wait();
  mixer.wait();
  EXPECT_EQ(mixer.take(), "[a]:caf\xe9");
  EXPECT_FALSE(mixer.has_deadline());
}

TEST(LineMixer, ManyPiecesOfALongLineAreNotReadAgainEachTime) {
  Mixer mixer(false);
  const int a = mixer.add("[a]:");
  mixer.add("[b]:");
  for (int i = 0; i < 2'000'000; ++i) mixer.feed(a, "x");  // minutes if it were
  mixer.feed(a, "\n");
  EXPECT_EQ(mixer.take().size(), 2'000'005u);
}

// Seconds to minutes if a piece were looked for from the beginning each time.
TEST(LineMixer, ManyReturnsInOneReadAreNoWork) {
  Mixer mixer(false);
  const int a = mixer.add("[a]:");
  std::string bars;
  for (int i = 0; i < 500'000; ++i) bars += "\r1";
  mixer.feed(a, bars);
  EXPECT_EQ(mixer.take().size(), 1 + 499'999u * 6);
  mixer.feed(a, std::string(1'000'000, '\r'));
  mixer.feed(a, "\n");
  EXPECT_EQ(mixer.take().size(), 1'000'006u);
}

TEST(LineMixer, ProgressBarsShowOnATerminal) {
  Mixer mixer(true);
  const int a = mixer.add("[a]:"), b = mixer.add("[b]:");
  mixer.feed(a, "10%\r20%");
  EXPECT_EQ(mixer.take(), "[a]:10%\r");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "[a]:20%");
  mixer.feed(a, "\r30%");
  mixer.wait();
  EXPECT_EQ(mixer.take(), "\r[a]:30%");
  mixer.feed(b, "line\n");
  EXPECT_EQ(mixer.take(), "\n[b]:line\n");
  mixer.feed(a, " end\r\n");
  EXPECT_EQ(mixer.take(), "[a]: end\r\n");
}

TEST(LineMixer, OpenLineOfTheSameStreamGoesOnWithoutPrefix) {
  Mixer mixer(true);
  const int a = mixer.add("[a]:");
  mixer.add("[b]:");
  mixer.feed(a, "password: ");
  mixer.wait();
  mixer.feed(a, "ok\n");
  EXPECT_EQ(mixer.take(), "[a]:password: ok\n");
}

TEST(LineMixer, EndlessLineIsShownInPieces) {
  Mixer mixer(false);
  const int a = mixer.add("[a]:"), b = mixer.add("[b]:");
  mixer.feed(a, std::string(LineMixer::kMaxHeld + 1, 'x'));
  EXPECT_EQ(mixer.take().size(), LineMixer::kMaxHeld + 5);
  mixer.feed(b, "y\n");
  EXPECT_EQ(mixer.take(), "\n[b]:y\n");
}

TEST(Output, PrefixTemplate) {
  const LocalRank local(3);
  const Rank rank(11);
  EXPECT_EQ(fill_prefix("", "default", local, rank, "vm"), "[default3]:");
  EXPECT_EQ(fill_prefix("<${role_name}|${local_rank}|${rank}|${hostname}|${bogus}> ", "r", local, rank, "vm"),
            "<r|3|11|vm|${bogus}> ");
  EXPECT_EQ(fill_prefix("\x1b[32m${role_name}\x1b[0m ", "a\n\x1b[2J", local, rank, "vm"),
            "\x1b[32ma\\n\\x1b[2J\x1b[0m ");
}

TEST(Output, StreamChoicePerRank) {
  StreamChoice everyone{.all = 3, .ranks = {}};
  EXPECT_TRUE(everyone.has_stdout(LocalRank(70)));
  StreamChoice some{.all = 0, .ranks = {{12, 1}, {0, 2}}};
  EXPECT_TRUE(some.has_stdout(LocalRank(12)));
  EXPECT_FALSE(some.has_stderr(LocalRank(12)));
  EXPECT_TRUE(some.has_stderr(LocalRank(0)));
  EXPECT_EQ(some.of(LocalRank(1)), 0);
}

TEST(Output, LastLines) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(last_lines("", 3, false), Lines{});
  EXPECT_EQ(last_lines("a\nb\nc\nd", 3, false), (Lines{"b", "c", "d"}));
  EXPECT_EQ(last_lines("a\nb\n", 3, false), (Lines{"a", "b"}));
  EXPECT_EQ(last_lines("a\n\nb\n", 3, false), (Lines{"a", "", "b"}));
  EXPECT_EQ(last_lines("10%\r50%\r100%\r\n", 3, false), (Lines{"100%"}));
  EXPECT_EQ(last_lines("lf of a line\nb\n", 3, true), (Lines{"b"}));
}

}  // namespace
}  // namespace ddprun::launcher
