#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/emulation/emulation.h"

namespace ddprun::emulated {
namespace {

// Every test of the program runs with work as late as possible and threads backwards, and fails if a rule of CUDA was
// broken.
class Rules final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    conduct() = {.streams = Streams::lazy, .backwards = true};
    violations().clear();
  }
  void OnTestEnd(const ::testing::TestInfo&) override { EXPECT_THAT(violations(), ::testing::IsEmpty()); }
};
[[maybe_unused]] const bool rules_are_watched = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Rules);
  return true;
}();

}  // namespace
}  // namespace ddprun::emulated
