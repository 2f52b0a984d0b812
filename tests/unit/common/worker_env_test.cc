#include "common/worker_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace ddprun {
namespace {

using ::testing::HasSubstr;

using Env = std::map<std::string, std::string>;

Result<WorkerEnv> read(const Env& env) {
  return from_environment([&env](const std::string& name) -> std::optional<std::string> {
    const auto found = env.find(name);
    if (found == env.end()) return std::nullopt;
    return found->second;
  });
}

WorkerEnv sample() {
  WorkerEnv env;
  env.rank = Rank(5);
  env.local_rank = LocalRank(1);
  env.slice.world_size = 8;
  env.local_world_size = 4;
  env.slice.group_rank = GroupRank(1);
  env.slice.group_world_size = 2;
  env.role_name = "trainer";
  env.role_rank = 5;
  env.slice.role_world_size = 8;
  env.slice.master = {"10.0.0.1", 31234};
  env.slice.restart_count = 2;
  env.max_restarts = 3;
  env.run_id = RunId("job7");
  env.use_agent_store = true;
  env.error_file = "/tmp/e.json";
  env.slice.round = Round(4);
  env.recorder_fd = 9;
  return env;
}

TEST(WorkerEnv, WhatIsWrittenIsReadBack) {
  const auto pairs = to_environment(sample());
  const Env env(pairs.begin(), pairs.end());
  EXPECT_EQ(env.at("RANK"), "5");
  EXPECT_EQ(env.at("TORCHELASTIC_USE_AGENT_STORE"), "True");
  EXPECT_EQ(env.at("MASTER_PORT"), "31234");
  const auto back = read(env);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_TRUE(back->launched);
  EXPECT_EQ(to_environment(*back), pairs);
}

TEST(WorkerEnv, AWorkersPlaceFollowsFromItsNodesSlice) {
  RankSlice slice;
  slice.round = Round(4);
  slice.first_rank = Rank(4);
  slice.first_role_rank = 2;
  slice.world_size = 8;
  WorkerEnv everybody;
  everybody.local_world_size = 4;
  const WorkerEnv env = everybody.of(slice, LocalRank(3));
  EXPECT_EQ(env.rank, Rank(7));
  EXPECT_EQ(env.role_rank, 5);
  EXPECT_EQ(env.local_rank, LocalRank(3));
  EXPECT_EQ(env.slice.round, Round(4));
  const auto pairs = to_environment(sample());
  const auto back = read(Env(pairs.begin(), pairs.end()));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->slice.first_rank, Rank(4));
  EXPECT_EQ(back->slice.first_role_rank, 4);
}

TEST(WorkerEnv, HasEveryVariableOfTorchrun) {
  const auto pairs = to_environment(sample());
  const Env env(pairs.begin(), pairs.end());
  for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
                           "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"}) {
    EXPECT_EQ(env.count(name), 1u) << name;
  }
  EXPECT_EQ(worker_env_names().size(), pairs.size());
}

TEST(WorkerEnv, NoRecorderLeavesItsVariableOut) {
  WorkerEnv env = sample();
  env.recorder_fd = -1;
  for (const auto& [name, value] : to_environment(env)) EXPECT_NE(name, "DDPRUN_RECORDER_FD");
}

TEST(WorkerEnv, WithoutRankItIsAWorldOfOne) {
  const auto env = read({{"WORLD_SIZE", "7"}, {"MASTER_PORT", "junk"}});
  ASSERT_TRUE(env);
  EXPECT_FALSE(env->launched);
  EXPECT_EQ(env->slice.world_size, 1);
  EXPECT_EQ(env->rank, Rank(0));
}

TEST(WorkerEnv, GroupRankIsWorkedOutWhereItIsMissing) {
  const auto env = read({{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "1"}});
  ASSERT_TRUE(env) << env.error().message();
  EXPECT_EQ(env->slice.group_rank, GroupRank(1));
  EXPECT_EQ(env->slice.group_world_size, 2);
}

TEST(WorkerEnv, BadValuesAreNamed) {
  const auto pairs = to_environment(sample());
  const Env good(pairs.begin(), pairs.end());
  const struct {
    const char* name;
    const char* value;
    const char* expected;
  } cases[] = {
      {"RANK", "x", "RANK='x': not a whole number"},
      {"RANK", "-1", "RANK='-1'"},
      {"RANK", "8", "RANK=8 but WORLD_SIZE=8"},
      {"WORLD_SIZE", "0", "WORLD_SIZE='0'"},
      {"WORLD_SIZE", "99999999999", "WORLD_SIZE='99999999999'"},
      {"LOCAL_RANK", "4", "LOCAL_RANK=4 but LOCAL_WORLD_SIZE=4"},
      {"LOCAL_WORLD_SIZE", "9", "LOCAL_WORLD_SIZE=9 but WORLD_SIZE=8"},
      {"GROUP_RANK", "2", "GROUP_RANK=2 but GROUP_WORLD_SIZE=2"},
      {"ROLE_RANK", "8", "ROLE_RANK=8 but ROLE_WORLD_SIZE=8"},
      {"MASTER_PORT", "0", "MASTER_PORT='0'"},
      {"MASTER_PORT", "65536", "MASTER_PORT='65536'"},
      {"MASTER_ADDR", "", "MASTER_ADDR or MASTER_PORT is not set"},
      {"TORCHELASTIC_USE_AGENT_STORE", "maybe", "TORCHELASTIC_USE_AGENT_STORE='maybe'"},
      {"DDPRUN_RECORDER_FD", "-3", "DDPRUN_RECORDER_FD='-3'"},
  };
  for (const auto& c : cases) {
    Env env = good;
    env[c.name] = c.value;
    const auto result = read(env);
    ASSERT_FALSE(result) << c.name << "=" << c.value;
    EXPECT_EQ(result.error().code(), Errc::invalid_argument);
    EXPECT_THAT(result.error().message(), HasSubstr(c.expected));
  }
}

}  // namespace
}  // namespace ddprun
