#include "rendezvous/server/state_file.h"

#include <gtest/gtest.h>

#include <filesystem>
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
  const auto file = StateFile::open(path);
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_TRUE(file->write(worlds));
  auto back = read_state(path);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, worlds);
  ASSERT_TRUE(file->write({}));
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

TEST(StateFile, AFolderThatCannotBeWrittenIsAnError) { EXPECT_FALSE(StateFile::open("/proc/nothing/state")); }

TEST(StateFile, ASecondDaemonIsRefusedUntilTheFirstHasGone) {
  const ddprun::testing::TempDir dir;
  const std::string path = dir.path() + "/state";
  {
    const auto first = StateFile::open(path);
    ASSERT_TRUE(first);
    const auto second = StateFile::open(path);
    ASSERT_FALSE(second);
    EXPECT_NE(second.error().message().find(path + " belongs to another daemon"), std::string::npos)
        << second.error().message();
  }
  EXPECT_TRUE(StateFile::open(path));
}

TEST(StateFile, AFailedWriteKeepsWhatWasThereAndLeavesNoOtherFile) {
  const ddprun::testing::TempDir dir;
  const std::string path = dir.path() + "/state", fresh = path + ".new";
  const auto file = StateFile::open(path);
  ASSERT_TRUE(file);
  std::filesystem::create_directory(path);  // rename() onto it fails
  EXPECT_FALSE(file->write({}));
  EXPECT_FALSE(std::filesystem::exists(fresh));
  std::filesystem::remove(path);
  const std::string other = dir.path() + "/other";
  std::ofstream(other) << "theirs";
  std::filesystem::create_symlink(other, fresh);
  EXPECT_FALSE(file->write({})) << "a link was followed";
  std::string content;
  std::ifstream(other) >> content;
  EXPECT_EQ(content, "theirs");
}

}  // namespace
}  // namespace ddprun::rendezvous
