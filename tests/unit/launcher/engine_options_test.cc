#include "launcher/options/engine_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/options/options.h"
#include "tests/support/recorded_env.h"

namespace ddprun::launcher {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ParsedOptions parsed(std::vector<std::string> arguments, const RecordedEnv& env) {
  arguments.push_back("train.py");
  return option_table(Flavour::run).parse(arguments, env.lookup()).value();
}

// "" = taken from nobody; an engine's name; or the sentence of a refusal.
std::string chosen(const RecordedEnv& env, const std::vector<std::string>& arguments = {},
                   const std::string& host = "hd1") {
  const auto task = choose_engine(parsed(arguments, env), env.lookup(), host);
  if (!task) return task.error().message();
  return *task ? std::string(engine_name((*task)->engine)) : "";
}

TEST(EngineOptions, WhatIsNotGivenIsTaken) {
  const RecordedEnv env("slurm-step-3.txt");
  auto options = parsed({}, env);
  const auto task = choose_engine(options, env.lookup(), "hd4").value().value();
  const auto note = take_from_engine(options, task, {Endpoint{"hd1", 20'008}, task.job}, 0);
  EXPECT_THAT(
      note,
      AllOf(
          HasSubstr("from Slurm (srun): nnodes=4 node-rank=3 rdzv-backend=c10d rdzv-endpoint=hd1:20008 rdzv-id=slurm-"),
          HasSubstr("one worker a node")));
  HostFacts host;
  host.gpu_count = [] { return Result<std::int64_t>(0); };
  host.cpu_count = [] { return 2; };
  const auto launch = make_launch_options(options, Flavour::run, env.lookup(), host).value();
  EXPECT_EQ(launch.job.nnodes_min, 4);
  EXPECT_EQ(launch.node_rank, 3);
  EXPECT_EQ(launch.endpoint.to_string(), "hd1:20008");
  EXPECT_EQ(launch.run_id.value, task.job);
}

TEST(EngineOptions, FlagsAndVariablesComeFirst) {
  RecordedEnv env("slurm-step-3.txt");
  env.set("PET_RDZV_ID", "mine");
  auto options = parsed({"--nnodes=2:4", "--nproc-per-node=2"}, env);
  const auto task = choose_engine(options, env.lookup(), "hd4").value().value();
  const auto note = take_from_engine(options, task, {Endpoint{"hd1", 20'008}, task.job}, 8);
  EXPECT_EQ(note, "from Slurm (srun): node-rank=3 rdzv-backend=c10d rdzv-endpoint=hd1:20008");
  EXPECT_EQ(options.text("nnodes"), "2:4");
  EXPECT_EQ(options.text("rdzv-id"), "mine");
  EXPECT_FALSE(needs_endpoint(parsed({"--rdzv-endpoint=a:1"}, env)));
  EXPECT_FALSE(needs_endpoint(parsed({"--master-addr=a"}, env)));
  EXPECT_FALSE(needs_endpoint(parsed({"--rdzv-conf=is_host=1"}, env)));
  EXPECT_TRUE(needs_endpoint(parsed({}, env)));
}

TEST(EngineOptions, TheStaticBackendGetsAMaster) {
  const RecordedEnv env("openmpi-2.txt");
  auto options = parsed({"--rdzv-backend=static"}, env);
  const auto task = choose_engine(options, env.lookup(), "hd3").value().value();
  take_from_engine(options, task, {Endpoint{"10.0.0.1", 4711}, "ompi-1"}, 4);
  EXPECT_EQ(options.text("master-addr"), "10.0.0.1");
  EXPECT_EQ(options.integer("master-port"), 4711);
  EXPECT_EQ(options.text("nproc-per-node"), "gpu");
}

TEST(EngineOptions, OneNodeAsksNobody) {
  const RecordedEnv env("slurm-step-3.txt");
  EXPECT_EQ(chosen(env), "Slurm");
  for (const char* word : {"--nnodes=1", "--nnodes=1:1", "--standalone", "--engine=none"})
    EXPECT_EQ(chosen(env, {word}), "") << word;
  EXPECT_EQ(chosen(RecordedEnv("slurm-step-3.txt").set("DDPRUN_ENGINE", "none")), "");
  EXPECT_EQ(chosen(RecordedEnv("hydra-0.txt")), "MPICH");
  EXPECT_EQ(chosen(RecordedEnv("hydra-0.txt"), {"--engine=slurm"}),
            "--engine: Slurm is asked for, but srun did not start this process");
}

TEST(EngineOptions, SeveralOnANode) {
  EXPECT_EQ(chosen(RecordedEnv("slurm-3on2-1.txt")),
            "Slurm started 2 ddprun on hd1; ddprun starts the workers itself: srun --ntasks-per-node=1 ddprun "
            "--nproc-per-node=2 (a job of its own for each: --standalone)");
  EXPECT_THAT(chosen(RecordedEnv("slurm-3on2-2.txt")), HasSubstr("Slurm started 3 ddprun on 2 nodes;"));
  EXPECT_THAT(
      chosen(RecordedEnv("openmpi-2.txt").set("OMPI_COMM_WORLD_LOCAL_SIZE", "3")),
      HasSubstr(
          "Open MPI started 3 ddprun on hd1; ddprun starts the workers itself: mpirun -N 1 --bind-to none ddprun"));
  EXPECT_THAT(chosen(RecordedEnv("hydra-2.txt").set("MPI_LOCALNRANKS", "2")),
              HasSubstr("mpiexec -ppn 1 ddprun --nproc-per-node=2"));
  EXPECT_EQ(chosen(RecordedEnv("slurm-3on2-1.txt"), {"--standalone"}), "");
}

TEST(EngineOptions, ShellsOfASlurmJob) {
  EXPECT_EQ(chosen(RecordedEnv("slurm-batch-0.txt")),
            "this job has 4 nodes (hd[1-4]) but ddprun was not started by srun: srun --ntasks-per-node=1 ddprun ...; "
            "--nnodes=1 to use this host only");
  EXPECT_EQ(chosen(RecordedEnv("slurm-batch-0.txt"), {"--nnodes=1"}), "");
  EXPECT_EQ(chosen(RecordedEnv("slurm-batch-0.txt"), {"--rdzv-endpoint=a:1"}), "");
  EXPECT_EQ(chosen(RecordedEnv("slurm-batch-0.txt").set("SLURM_JOB_NUM_NODES", "1")), "");
  EXPECT_THAT(chosen(RecordedEnv("slurm-salloc.txt"), {}, "login7.site"),
              HasSubstr("this shell is on login7.site, and the nodes of its Slurm job are hd[1-2]: srun"));
  EXPECT_THAT(chosen(RecordedEnv("slurm-salloc.txt"), {}, "hd1.site"), HasSubstr("this job has 2 nodes"));
  EXPECT_THAT(chosen(RecordedEnv("slurm-pty-0.txt")),
              HasSubstr("this terminal is one of the 2 tasks of its Slurm step on 2 nodes"));
  EXPECT_EQ(chosen(RecordedEnv("slurm-pty-0.txt").set("SLURM_STEP_NUM_TASKS", "1")), "");
}

TEST(EngineOptions, Kubernetes) {
  RecordedEnv env;
  env.set("KUBERNETES_SERVICE_HOST", "10.96.0.1").set("JOB_COMPLETION_INDEX", "2");
  EXPECT_THAT(chosen(env, {"--nnodes=4"}), HasSubstr("--rdzv-endpoint=JOB-0.SERVICE:29400"));
  EXPECT_EQ(chosen(env), "");
  EXPECT_EQ(chosen(env, {"--nnodes=4", "--rdzv-endpoint=train-0.train:29400"}), "");
  EXPECT_EQ(chosen(RecordedEnv(env).set("PET_MASTER_ADDR", "train-0.train"), {"--nnodes=4"}), "");
  auto options = parsed({"--nnodes=4"}, env);
  take_from_kubernetes(options, env.lookup());
  EXPECT_EQ(options.integer("node-rank"), 2);
  EXPECT_EQ(options.source("node-rank"), "JOB_COMPLETION_INDEX");
  auto given = parsed({"--nnodes=4", "--node-rank=1"}, env);
  take_from_kubernetes(given, env.lookup());
  EXPECT_EQ(given.integer("node-rank"), 1);
}

}  // namespace
}  // namespace ddprun::launcher
