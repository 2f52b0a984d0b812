#include "worker/tools/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

// Sizes that `trainer bench` refuses or bounds before it looks for other ranks.
namespace ddprun::comm {
namespace {

using ::testing::HasSubstr;

// What it says to an environment that it refuses: whoever gets so far has taken the sizes.
std::string said(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "all-reduce");
  ::setenv("RANK", "nobody", 1);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(bench_main(arguments), 2);
  ::unsetenv("RANK");
  return ::testing::internal::GetCapturedStderr();
}

TEST(Bench, ACountWhoseBytesWouldWrapAroundIsRefused) {
  EXPECT_EQ(said({"--count", "4611686018427387905"}),  // 4 bytes each: 2^64 + 4
            "trainer bench: --count 4611686018427387905 is more than 4 TiB, the most for one tensor\n");
  EXPECT_THAT(said({"--count", "1099511627777"}), HasSubstr("more than 4 TiB"));
  EXPECT_THAT(said({"--count", "1073741824"}), HasSubstr("RANK"));
}

TEST(Bench, ASweepEndsAlsoWhenItsNextStepWouldWrapAround) {
  EXPECT_THAT(said({"--sweep", "4GiB:1TiB", "--factor", "4294967296"}), HasSubstr("RANK"));
  EXPECT_THAT(said({"--sweep", "1GiB:5TiB"}), HasSubstr("--sweep: 5TiB is more than 4 TiB"));
}

TEST(Bench, AnswersWhatItIsAsked) {
  for (const auto& [flag, words] : {std::pair{"--help", "all-reduce|all-gather"}, std::pair{"--version", "trainer "}}) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(bench_main(std::vector<std::string>{flag}), 0);
    EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr(words));
  }
}

TEST(Bench, SizesAreBounded) {
  EXPECT_THAT(said({"--size", "99999999999999999999"}), HasSubstr("--size: 99999999999999999999 is more than 4 TiB"));
  EXPECT_THAT(said({"--size", "17179869184GiB"}), HasSubstr("more than 4 TiB"));
  EXPECT_THAT(said({"--size", "many"}), HasSubstr("is no size"));
  EXPECT_THAT(said({"--rounds", "4294967296"}), HasSubstr("--rounds"));
}

}  // namespace
}  // namespace ddprun::comm
