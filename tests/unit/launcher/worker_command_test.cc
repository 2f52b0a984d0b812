#include "launcher/options/worker_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "launcher/options/cpu_budget.h"
#include "launcher/options/device.h"
#include "launcher/options/signal_policy.h"

namespace ddprun::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Program python_program() {
  Program program;
  program.executable = "/usr/bin/python3";
  program.leading = {"/usr/bin/python3", "-u", "train_${local_rank}.py"};
  program.python = "/usr/bin/python3";
  return program;
}

WorkerEnv place(std::int64_t local_rank) {
  WorkerEnv env;
  env.rank = Rank(4 + local_rank);
  env.local_rank = LocalRank(local_rank);
  env.slice.world_size = 8;
  env.local_world_size = 4;
  env.slice.master = Endpoint{"127.0.0.1", 1234};
  return env;
}

TEST(WorkerCommand, LocalRankIsReplacedInArgumentsOnly) {
  LaunchOptions options;
  options.program.arguments = {"--out=log${local_rank}${local_rank}", "${RANK}", "$local", "a b"};
  const WorkerCommand command(options, python_program(), {}, 4);
  EXPECT_THAT(command.arguments(LocalRank(12)),
              ElementsAre("/usr/bin/python3", "-u", "train_12.py", "--out=log1212", "${RANK}", "$local", "a b"));
}

TEST(WorkerCommand, LegacyLocalRankStandsRightBehindTheScript) {
  LaunchOptions options;
  options.program.arguments = {"--lr", "1"};
  options.program.local_rank_argument = LocalRankArgument::hyphen;
  const auto arguments = [&options] { return WorkerCommand(options, python_program(), {}, 4).arguments(LocalRank(3)); };
  EXPECT_THAT(arguments(), ElementsAre("/usr/bin/python3", "-u", "train_3.py", "--local-rank=3", "--lr", "1"));
  options.program.local_rank_argument = LocalRankArgument::underscore;
  EXPECT_THAT(arguments(), ElementsAre("/usr/bin/python3", "-u", "train_3.py", "--local_rank=3", "--lr", "1"));
}

TEST(WorkerCommand, OuterValuesOfOurVariablesDoNotLeakIn) {
  const EnvironmentMap outer{{"RANK", "7"},       {"WORLD_SIZE", "99"},        {"MASTER_ADDR", "nowhere"},
                             {"MY_OWN", "a b"},   {"DDPRUN_RECORDER_FD", "9"}, {"TORCHELASTIC_RESTART_COUNT", "5"},
                             {"GROUP_RANK", "4"}, {"ROLE_RANK", "9"},          {"LOCAL_RANK", "3"}};
  const LaunchOptions options;
  const WorkerCommand command(options, python_program(), outer, 4);
  const auto env = *command.environment(place(1));
  EXPECT_EQ(env.at("RANK"), "5");
  EXPECT_EQ(env.at("WORLD_SIZE"), "8");
  EXPECT_EQ(env.at("LOCAL_RANK"), "1");
  EXPECT_EQ(env.at("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(env.at("MASTER_PORT"), "1234");
  EXPECT_EQ(env.at("TORCHELASTIC_RESTART_COUNT"), "0");
  EXPECT_EQ(env.at("MY_OWN"), "a b");
  EXPECT_EQ(env.at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
  EXPECT_FALSE(env.contains("DDPRUN_RECORDER_FD"));
}

TEST(WorkerCommand, OmpThreadsAreAShareOfTheCpusUnlessSet) {
  LaunchOptions options;
  const auto omp = [&options](const EnvironmentMap& outer, std::int64_t cpus) -> std::string {
    const auto env = *WorkerCommand(options, python_program(), outer, cpus).environment(place(0));
    return env.contains("OMP_NUM_THREADS") ? env.at("OMP_NUM_THREADS") : "unset";
  };
  EXPECT_EQ(omp({}, 64), "unset");  // one worker
  // One that would count more CPUs than it may use.
  EXPECT_EQ(WorkerCommand(options, python_program(), {}, 3, true).environment(place(0))->at("OMP_NUM_THREADS"), "3");
  options.node.nproc = 4;
  EXPECT_EQ(omp({}, 64), "16");
  EXPECT_EQ(omp({}, 7), "1");
  EXPECT_EQ(omp({}, 2), "1");
  EXPECT_EQ(omp({{"OMP_NUM_THREADS", "3"}}, 64), "3");
  EXPECT_EQ(omp({{"OMP_NUM_THREADS", ""}}, 64), "");
}

TEST(WorkerCommand, OptionsForTheEnvironmentWinOverTheOuterOne) {
  LaunchOptions options;
  options.workers.environment = {{"NCCL_DEBUG", "INFO"}, {"A", "1"}, {"A", "2"}};
  options.workers.devices = {"0", "2"};
  options.supervision.signals_to_handle = {SIGTERM, SIGUSR1};
  const EnvironmentMap outer{{"NCCL_DEBUG", "WARN"}, {"CUDA_VISIBLE_DEVICES", "7"}};
  const auto env = *WorkerCommand(options, python_program(), outer, 4).environment(place(0));
  EXPECT_EQ(env.at("NCCL_DEBUG"), "INFO");
  EXPECT_EQ(env.at("A"), "2");
  EXPECT_EQ(env.at("CUDA_VISIBLE_DEVICES"), "0,2");
  EXPECT_EQ(env.at("TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM,SIGUSR1");
}

TEST(WorkerCommand, VirtualLocalRankGivesEachWorkerOneDevice) {
  LaunchOptions options;
  options.workers.virtual_local_rank = true;
  const auto env_of = [&options](const EnvironmentMap& outer, std::int64_t rank) {
    return WorkerCommand(options, python_program(), outer, 4).environment(place(rank));
  };
  EXPECT_EQ(env_of({}, 2)->at("LOCAL_RANK"), "0");
  EXPECT_EQ(env_of({}, 2)->at("CUDA_VISIBLE_DEVICES"), "2");
  EXPECT_EQ(env_of({{"CUDA_VISIBLE_DEVICES", "4, 6"}}, 1)->at("CUDA_VISIBLE_DEVICES"), "6");
  EXPECT_EQ(env_of({{"CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b"}}, 1)->at("CUDA_VISIBLE_DEVICES"), "MIG-b");
  const EnvironmentMap hip{{"HIP_VISIBLE_DEVICES", "1,3"}, {"CUDA_VISIBLE_DEVICES", "9,9"}};
  EXPECT_EQ(env_of(hip, 1)->at("CUDA_VISIBLE_DEVICES"), "3");
  EXPECT_EQ(env_of(hip, 1)->at("HIP_VISIBLE_DEVICES"), "3");
  const auto too_few = env_of({{"CUDA_VISIBLE_DEVICES", "4"}}, 1);
  ASSERT_FALSE(too_few.has_value());
  EXPECT_THAT(too_few.error().message(), HasSubstr("local rank 1 has no device of its own in CUDA_VISIBLE_DEVICES=4"));
}

TEST(WorkerCommand, EnvironmentMapTakesWhatGetenvWould) {
  const char* const environment[] = {"A=1", "B=x=y", "A=2", "broken", "=x", "E=", nullptr};
  EXPECT_THAT(environment_strings(environment_map(environment)), ElementsAre("A=1", "B=x=y", "E="));
}

TEST(CpuBudget, ShareIsNeverZeroAndNeverTooMuch) {
  EXPECT_EQ(threads_per_worker(8, 2), 4);
  EXPECT_EQ(threads_per_worker(8, 3), 2);
  EXPECT_EQ(threads_per_worker(2, 8), 1);
}

TEST(Device, VisibleGpusFollowCudasRules) {
  const std::vector<Gpu> gpus{{"GPU-aaa1", "0"}, {"GPU-aab2", "1"}, {"GPU-ccc3", "2"}};
  EXPECT_THAT(visible_gpus(gpus, std::nullopt), ElementsAre(0, 1, 2));
  EXPECT_THAT(visible_gpus(gpus, ""), IsEmpty());
  EXPECT_THAT(visible_gpus(gpus, "2,0"), ElementsAre(2, 0));
  EXPECT_THAT(visible_gpus(gpus, "0,-1,2"), ElementsAre(0));  // the list ends at the first bad entry
  EXPECT_THAT(visible_gpus(gpus, "1,7"), ElementsAre(1));
  EXPECT_THAT(visible_gpus(gpus, "0,0"), IsEmpty());
  EXPECT_THAT(visible_gpus(gpus, "GPU-c,GPU-aab"), ElementsAre(2, 1));
  EXPECT_THAT(visible_gpus(gpus, "GPU-a"), IsEmpty());  // fits two
  EXPECT_THAT(visible_gpus({}, "0"), IsEmpty());
  EXPECT_THAT(visible_gpus(gpus, "MIG-1, MIG-2"), ElementsAre(0, 0));
}

TEST(SignalPolicy, FirstEndsGracefullyAnImpatientSecondAtOnce) {
  using Action = SignalPolicy::Action;
  const ManualClock zero;
  const auto at = [&zero](int ms) { return zero.now() + std::chrono::milliseconds(ms); };
  SignalPolicy policy({SIGTERM, SIGINT}, {SIGUSR1});
  EXPECT_EQ(policy.on(SIGUSR1, at(0)), Action::forward);
  EXPECT_EQ(policy.on(SIGUSR2, at(0)), Action::ignore);
  EXPECT_EQ(policy.on(SIGINT, at(10)), Action::stop);
  EXPECT_EQ(policy.on(SIGINT, at(50)), Action::echo);  // the same Ctrl-C by another way
  EXPECT_EQ(policy.on(SIGTERM, at(5000)), Action::ignore);
  EXPECT_EQ(policy.on(SIGUSR1, at(5000)), Action::forward);
  EXPECT_EQ(policy.on(SIGINT, at(6000)), Action::stop_now);
  EXPECT_EQ(policy.on(SIGINT, at(7000)), Action::stop_now);
  SignalPolicy two_persons({SIGTERM, SIGINT}, {});
  EXPECT_EQ(two_persons.on(SIGTERM, at(0)), Action::stop);
  EXPECT_EQ(two_persons.on(SIGINT, at(10)), Action::stop_now);  // no echo: another signal
}

}  // namespace
}  // namespace ddprun::launcher
