#include "rendezvous/state_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/common_temp_dir.h"

namespace ddprun::rendezvous {
namespace {

TEST(StateFile, ComesBackAsItWasWritten) {
  const ddprun::testing::TempDir dir;
  const std::string path = dir.path() + "/state";
  std::vector<KnownWorld> worlds(2);
  worlds[0] = KnownWorld{RunId("job 7\n"), Round(12), std::chrono::milliseconds(20'000)};
  worlds[1] = KnownWorld{RunId("\xff"), Round(0), std::chrono::milliseconds(0)};
  ASSERT_TRUE(write_state(path, worlds));
  auto back = read_state(path);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, worlds);
  ASSERT_TRUE(write_state(path, {}));
  back = read_state(path);
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->empty());
}

TEST(StateFile, AFileThatDoesNotExistIsEmpty) {
  const ddprun::testing::TempDir dir;
  const auto back = read_state(dir.path() + "/nothing");
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->empty());
}

TEST(StateFile, WhatIsNoStateIsRefusedNamingTheFile) {
  const ddprun::testing::TempDir dir;
  const std::string path = dir.path() + "/state";
  const std::string head = "ddprun-rendezvous state 1\n";
  for (const std::string& text :
       {std::string(), std::string("hello\n"), head, head + "20000 1 6a\n", head + "x 1 6a\nend\n",
        head + "20000 -1 6a\nend\n", head + "20000 1 6\nend\n", head + "20000 1 zz\nend\n"}) {
    std::ofstream(path) << text;
    const auto back = read_state(path);
    ASSERT_FALSE(back) << text;
    EXPECT_NE(back.error().message().find(path), std::string::npos);
  }
}

TEST(StateFile, AFolderThatCannotBeWrittenIsAnError) { EXPECT_FALSE(write_state("/proc/nothing/state", {})); }

}  // namespace
}  // namespace ddprun::rendezvous
