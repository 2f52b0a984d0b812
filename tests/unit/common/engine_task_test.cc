#include "common/engine_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/recorded_env.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

EngineTask task_of(const RecordedEnv& env, std::optional<Engine> wanted = std::nullopt) {
  auto task = find_engine_task(env.lookup(), wanted);
  if (!task) ADD_FAILURE() << task.error().message();
  return task && *task ? **task : EngineTask();
}

TEST(EngineTask, AStepOfSlurm) {
  const auto task = task_of(RecordedEnv("slurm-step-3.txt"));
  EXPECT_EQ(task.engine, Engine::slurm);
  EXPECT_EQ(task.rank, 3);
  EXPECT_EQ(task.size, 4);
  EXPECT_EQ(task.node, 3);
  EXPECT_EQ(task.nodes, 4);
  EXPECT_TRUE(task.one_a_node());
  EXPECT_THAT(task.hosts, ElementsAre("hd1", "hd2", "hd3", "hd4"));
  EXPECT_EQ(task.host, "hd4");
  EXPECT_THAT(task.job, HasSubstr(".0.0"));
  EXPECT_EQ(task.topology_key, "");  // its pattern knows no switch
}

TEST(EngineTask, ARequeuedJobIsAnotherRun) {
  RecordedEnv env("slurm-step-0.txt");
  env.set("SLURM_JOB_ID", "1501").set("SLURM_STEP_ID", "2").set("SLURM_RESTART_COUNT", "3");
  EXPECT_EQ(task_of(env).job, "slurm-1501.2.3");
  EXPECT_EQ(task_of(env).first_port, 20'008);
}

TEST(EngineTask, ASwitchIsATopologyKey) {
  RecordedEnv env("slurm-step-0.txt");
  env.set("SLURM_TOPOLOGY_ADDR", "core.leaf7.hd1").set("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node");
  EXPECT_EQ(task_of(env).topology_key, "core.leaf7");
}

TEST(EngineTask, SeveralTasksOnANodeOfSlurm) {
  const auto first = task_of(RecordedEnv("slurm-3on2-1.txt"));
  EXPECT_EQ(first.size, 3);
  EXPECT_EQ(first.local_size, 2);
  EXPECT_FALSE(first.one_a_node());
  const auto last = task_of(RecordedEnv("slurm-3on2-2.txt"));
  EXPECT_EQ(last.node, 1);
  EXPECT_EQ(last.local_size, 1);
  EXPECT_FALSE(last.one_a_node());
}

TEST(EngineTask, SlurmsOwnPmiIsSlurm) {
  const auto env = RecordedEnv("slurm-pmi2-0.txt");
  EXPECT_TRUE(env.lookup()("PMI_FD"));
  EXPECT_EQ(task_of(env).engine, Engine::slurm);
}

TEST(EngineTask, OpenMpi) {
  const auto task = task_of(RecordedEnv("openmpi-2.txt"));
  EXPECT_EQ(task.engine, Engine::openmpi);
  EXPECT_EQ(task.rank, 2);
  EXPECT_EQ(task.nodes, 3);
  EXPECT_TRUE(task.one_a_node());
  EXPECT_THAT(task.job, testing::MatchesRegex("ompi-[0-9]+"));
  EXPECT_THAT(task.meeting, HasSubstr("tcp://10."));
  RecordedEnv several("openmpi-2.txt");
  several.set("OMPI_COMM_WORLD_LOCAL_SIZE", "2").set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  EXPECT_FALSE(task_of(several).one_a_node());
  EXPECT_EQ(task_of(several).nodes, 0);  // it does not say
}

// Slurm's step there is that of mpirun's daemons: two nodes, other ranks.
TEST(EngineTask, OpenMpiInsideOfSlurmIsAskedFirst) {
  const auto env = RecordedEnv("openmpi-in-slurm-2.txt");
  EXPECT_EQ(env.lookup()("SLURM_PROCID"), "1");
  const auto task = task_of(env);
  EXPECT_EQ(task.engine, Engine::openmpi);
  EXPECT_EQ(task.rank, 2);
  EXPECT_EQ(task.size, 3);
  EXPECT_EQ(task_of(env, Engine::slurm).rank, 1);  // who asks for it gets it
}

TEST(EngineTask, Hydra) {
  const auto task = task_of(RecordedEnv("hydra-2.txt"));
  EXPECT_EQ(task.engine, Engine::hydra);
  EXPECT_EQ(task.rank, 2);
  EXPECT_EQ(task.nodes, 3);
  EXPECT_TRUE(task.one_a_node());
  EXPECT_EQ(task.job, "");  // its key-value space is asked for it
}

TEST(EngineTask, NobodyStartedUs) {
  for (const char* file : {"slurm-batch-0.txt", "slurm-salloc.txt", "slurm-pty-0.txt"}) {
    ASSERT_FALSE(RecordedEnv(file).empty()) << file;
    EXPECT_EQ(task_of(RecordedEnv(file)).engine, Engine::none) << file;
  }
  EXPECT_EQ(task_of(RecordedEnv()).engine, Engine::none);
  EXPECT_EQ(task_of(RecordedEnv("slurm-step-3.txt"), Engine::none).engine, Engine::none);
  const auto wanted = find_engine_task(RecordedEnv("hydra-0.txt").lookup(), Engine::slurm);
  ASSERT_FALSE(wanted);
  EXPECT_EQ(wanted.error().message(), "Slurm is asked for, but srun did not start this process");
}

TEST(EngineTask, ABrokenEnvironmentIsSaid) {
  RecordedEnv env("slurm-step-3.txt");
  env.set("SLURM_NODEID", "9");
  const auto task = find_engine_task(env.lookup(), std::nullopt);
  ASSERT_FALSE(task);
  EXPECT_EQ(task.error().message(),
            "srun started this, but SLURM_NODEID is '9', which is not from 0 to 3; --engine=none does without it");
  EXPECT_FALSE(find_engine_task(RecordedEnv("openmpi-2.txt").unset("OMPI_COMM_WORLD_RANK").lookup(), std::nullopt));
  EXPECT_FALSE(
      find_engine_task(RecordedEnv("slurm-step-3.txt").set("SLURM_STEP_NODELIST", "hd[1-").lookup(), std::nullopt));
  EXPECT_FALSE(
      find_engine_task(RecordedEnv("slurm-step-3.txt").set("SLURM_STEP_TASKS_PER_NODE", "1(x").lookup(), std::nullopt));
}

TEST(SlurmShell, OfEachKind) {
  const auto kind = [](const RecordedEnv& env) {
    const auto shell = find_slurm_shell(env.lookup());
    return shell ? static_cast<int>(shell->kind) : -1;
  };
  EXPECT_EQ(kind(RecordedEnv("slurm-batch-0.txt")), static_cast<int>(SlurmShell::Kind::batch));
  EXPECT_EQ(kind(RecordedEnv("slurm-salloc.txt")), static_cast<int>(SlurmShell::Kind::salloc));
  EXPECT_EQ(kind(RecordedEnv("slurm-pty-0.txt")), static_cast<int>(SlurmShell::Kind::pty));
  EXPECT_EQ(kind(RecordedEnv("slurm-step-0.txt")), -1);
  EXPECT_EQ(kind(RecordedEnv()), -1);
  // LaunchParameters=use_interactive_step
  EXPECT_EQ(kind(RecordedEnv("slurm-pty-0.txt").set("SLURM_STEP_ID", "4294967290")),
            static_cast<int>(SlurmShell::Kind::salloc));
}

}  // namespace
}  // namespace ddprun
