#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/process/worker/trainer_support.h"
#include "tests/support/free_port.h"

// Runs in parts: stopped, killed, restarted and begun again, in the same world or another.
namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class Trainer : public ::testing::Test, public TrainerRunner {};

TEST_F(Trainer, StopsAndGoesOnAnywhereWithTheSameLosses) {
  write_csv("data.csv", 60, 4);
  set("data.shuffle", "true");
  set("data.batch_size", "3");
  set("train.epochs", "3");
  set("optimizer.momentum", "0.9");
  set("schedule.name", "cosine");
  set("schedule.total_steps", "30");
  set("output.metrics", path("whole.jsonl"));
  set("output.indices", path("whole"));
  set("output.params", path("whole.json"));
  expect_ok(run(2));
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "0");
  set("output.metrics", path("parts.jsonl"));
  set("output.indices", path("parts"));
  set("output.params", path("parts.json"));
  for (const char* until : {"4", "10", "14", "29", "0"}) {
    set("train.max_steps", until);
    set("data.num_workers", until[0] == '1' ? "3" : "0");  // nor does the number of threads matter
    expect_ok(run(2));
  }
  EXPECT_EQ(metrics("whole.jsonl").size(), 30U);
  EXPECT_EQ(curve("whole.jsonl"), curve("parts.jsonl"));
  EXPECT_EQ(read("whole/rank-0.txt"), read("parts/rank-0.txt"));
  EXPECT_EQ(read("whole/rank-1.txt"), read("parts/rank-1.txt"));
  EXPECT_EQ(read("whole.json"), read("parts.json"));
}

TEST_F(Trainer, AnotherWorldSizeLosesAndRepeatsNoSample) {
  write_csv("data.csv", 94, 2);
  set("data.shuffle", "true");
  set("data.batch_size", "2");
  set("train.epochs", "1");
  set("checkpoint.dir", path("ck"));
  std::multiset<int> used;
  const int parts[][2] = {{2, 5}, {4, 9}, {1, 12}, {3, 0}};  // ranks, until step
  int part = 0;
  for (const auto& [ranks, until] : parts) {
    set("train.max_steps", std::to_string(until));
    set("output.indices", path("i" + std::to_string(part)));
    expect_ok(run(ranks));
    for (int r = 0; r < ranks; ++r) {
      std::istringstream in(read("i" + std::to_string(part) + "/rank-" + std::to_string(r) + ".txt"));
      for (int epoch = 0, index = 0; in >> epoch >> index;) used.insert(index);
    }
    ++part;
  }
  EXPECT_EQ(used.size(), 94U);
  EXPECT_EQ(std::set<int>(used.begin(), used.end()).size(), 94U);
}

// The learning rate goes down with the progress in the data: no jump, and the end where it should be.
TEST_F(Trainer, TheScheduleGoesOnWithAnotherWorldOrBatch) {
  write_csv("data.csv", 80, 2);
  set("train.epochs", "2");
  set("optimizer.lr", "0.01");
  set("schedule.name", "linear");
  set("schedule.warmup_steps", "4");
  const int ways[][4] = {{1, 2, 2, 2}, {2, 2, 1, 2}, {1, 2, 1, 5}, {2, 5, 3, 1}};  // ranks and batch, then and now
  int way = 0;
  for (const auto& [ranks, batch, then_ranks, then_batch] : ways) {
    SCOPED_TRACE(++way);
    const int begun = ranks * batch, now = then_ranks * then_batch;
    const int first = 80 / begun / 2;
    set("checkpoint.dir", path(fmt::format("ck{}", way)));
    set("output.metrics", path(fmt::format("m{}.jsonl", way)));
    set("data.batch_size", std::to_string(batch));
    set("checkpoint.every_steps", std::to_string(first));
    // A killed run's folder: the newest checkpoint, in the middle of the first epoch, is all that is left.
    set("checkpoint.keep", "99");
    expect_ok(run(ranks));
    for (const auto& entry : fs::directory_iterator(path(fmt::format("ck{}", way)))) {
      const std::string name = entry.path().filename().string();
      if (name != fmt::format("step-{:09}", first) && name[0] != '.') fs::remove_all(entry.path());
    }
    set("data.batch_size", std::to_string(then_batch));
    expect_ok(run(then_ranks));
    const auto lines = metrics(fmt::format("m{}.jsonl", way));
    const double total = 2.0 * (80 / begun);
    int used = 0;  // of both epochs
    for (const Json& line : lines) {
      const double t = static_cast<double>(used) / begun;
      const double right = t < 4 ? 0.01 * t / 4 : 0.01 * (1 - (t - 4) / (total - 4));
      EXPECT_NEAR(line["lr"].get<double>(), right, 1e-9) << line;
      const int epoch_left = 80 - used % 80;
      used += std::min(epoch_left, line["step"].get<int>() <= first ? begun : now);
    }
    EXPECT_EQ(used, 160);
  }
}

TEST_F(Trainer, AKilledRunsFilesAreCutBackToItsCheckpoint) {
  write_csv("data.csv", 40, 2);
  set("data.batch_size", "1");
  set("train.epochs", "1");
  set("train.max_steps", "10");
  set("checkpoint.dir", path("ck"));
  set("output.metrics", path("m.jsonl"));
  set("output.indices", path("i"));
  expect_ok(run(2));
  // What a kill between the checkpoint and the next would have left.
  std::ofstream(path("m.jsonl"), std::ios::app) << "{\"step\":11,\"loss\":1}\n{\"step\":12,\"lo";
  std::ofstream(path("i/rank-1.txt"), std::ios::app) << "0 999\n";
  set("train.max_steps", "0");
  expect_ok(run(2));
  const auto lines = metrics("m.jsonl");
  ASSERT_EQ(lines.size(), 20U);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  EXPECT_THAT(read("i/rank-1.txt"), Not(HasSubstr("999")));
  EXPECT_EQ(lines_of("i/rank-1.txt"), 20);
}

// Also those of ranks that the next world does not have; and when it grows again they go on where they were.
TEST_F(Trainer, IndexFilesSurviveASmallerWorld) {
  write_csv("data.csv", 36, 2);
  set("data.batch_size", "1");
  set("train.epochs", "1");
  set("train.max_steps", "6");
  set("checkpoint.dir", path("ck"));
  set("output.indices", path("i"));
  expect_ok(run(3));
  std::ofstream(path("i/rank-2.txt"), std::ios::app) << "0 999\n";
  set("train.max_steps", "9");
  expect_ok(run(1));
  EXPECT_THAT(read("i/rank-2.txt"), Not(HasSubstr("999")));
  set("train.max_steps", "0");
  expect_ok(run(3));
  EXPECT_EQ(lines_of("i/rank-0.txt"), 6 + 3 + 5);
  EXPECT_EQ(lines_of("i/rank-1.txt"), 6 + 5);
  EXPECT_EQ(lines_of("i/rank-2.txt"), 6 + 5);
}

TEST_F(Trainer, AFinishedRunMayBeStartedAgain) {
  write_csv("data.csv", 16, 2);
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "4");
  set("output.params", path("a.json"));
  expect_ok(run(2));
  set("output.params", path("b.json"));
  const Finished again = run(1);
  EXPECT_EQ(again.code, 0) << said(again);
  EXPECT_EQ(read("a.json"), read("b.json"));
}

class TrainerStops : public Trainer, public ::testing::WithParamInterface<int> {};

TEST_P(TrainerStops, SavesAfterTheSameStepAndGoesOn) {
  write_csv("data.csv", 80, 3);
  set("data.batch_size", "1");
  set("output.params", path("whole.json"));
  expect_ok(run(2));
  set("train.step_delay_ms", "30");
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "1000");
  set("output.params", path("p.json"));
  set("output.metrics", path("m.jsonl"));
  {
    Running job = start(2);
    wait_for_lines("m.jsonl", 5);
    job.signal(GetParam());
    const Finished stopped = job.wait();
    EXPECT_EQ(stopped.code, 75) << said(stopped);
    EXPECT_THAT(stopped.out, HasSubstr("state saved"));
  }
  const int steps = lines_of("m.jsonl");
  EXPECT_LT(steps, 80);
  EXPECT_FALSE(fs::exists(path("p.json")));
  set("train.step_delay_ms", "0");
  expect_ok(run(2));
  const auto lines = metrics("m.jsonl");
  ASSERT_EQ(lines.size(), 80U);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  EXPECT_EQ(read("p.json"), read("whole.json"));
}
INSTANTIATE_TEST_SUITE_P(Signals, TrainerStops, ::testing::Values(SIGTERM, SIGUSR1),
                         [](const auto& test) { return std::string(test.param == SIGTERM ? "TERM" : "USR1"); });

TEST_F(Trainer, AStopWithoutACheckpointFolderDoesNotClaimToHaveSaved) {
  write_csv("data.csv", 400, 2);
  set("data.batch_size", "1");
  set("train.step_delay_ms", "30");
  set("log.every_steps", "1");
  for (const int signal : {SIGTERM, SIGUSR1}) {
    Running job = start(0);
    ASSERT_TRUE(job.wait_for("step 3/"));
    job.signal(SIGUSR2);  // says so, and is no reason to end
    ASSERT_TRUE(job.wait_for("SIGUSR2 asks for a checkpoint, but there is no checkpoint.dir"));
    job.signal(signal);
    const Finished stopped = job.wait();
    EXPECT_EQ(stopped.code, 128 + SIGTERM) << said(stopped);
    EXPECT_THAT(stopped.out, HasSubstr("nothing was saved"));
  }
}

// A run that ended between an epoch's last step and the epoch's end has no speed to tell of that epoch.
TEST_F(Trainer, TheEpochLineTellsTheEpochsOwnSpeed) {
  write_csv("data.csv", 8, 2);
  set("train.epochs", "1");
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "1");
  const Finished whole = run(1);
  EXPECT_THAT(whole.out, ::testing::ContainsRegex("done: mean loss [0-9.]+, [0-9]+ samples/s,")) << said(whole);
  const Finished again = run(1);
  EXPECT_EQ(again.code, 0) << said(again);
  EXPECT_THAT(again.out, Not(HasSubstr(" 0 samples/s")));
}

TEST_F(Trainer, CheckpointsOfAnotherRunAreNotMixedWith) {
  write_csv("data.csv", 8, 2);
  set("checkpoint.dir", path("ck"));
  expect_ok(run(1));
  set("checkpoint.resume", "none");
  const Finished refused = run(1);
  EXPECT_EQ(refused.code, 78) << said(refused);
  EXPECT_THAT(refused.err, HasSubstr("already has checkpoints up to step 4"));
  set("checkpoint.resume", "auto");
  write_csv("data.csv", 9, 2);
  EXPECT_THAT(run(1).err, HasSubstr("was made with 8 training samples, data.train has 9"));
  write_csv("data.csv", 8, 2);
  set("train.seed", "8");
  EXPECT_THAT(run(1).err, HasSubstr("train.seed 7"));
  set("train.seed", "7");
  write_csv("data.csv", 8, 3);
  EXPECT_THAT(run(1).err, HasSubstr("tensor 'fc.weight' is F32 [1, 2]"));
}

// As from a disk that is full: no file may grow beyond 96 KiB (the flight recorder's memory needs 65).
TEST_F(Trainer, AFullDiskIsSaidAndLosesNothing) {
  write_csv("data.csv", 6, 30000);
  set("data.batch_size", "1");
  set("optimizer.lr", "1e-6");
  set("train.epochs", "1");
  set("train.max_steps", "2");
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "1");
  expect_ok(run(1));
  const std::string before = read("ck/step-000000002/checksums");
  set("train.max_steps", "5");
  set("output.params", path("p.json"));
  write_config();
  const Finished full = runner().run({"/bin/sh", "-c", "ulimit -f 192; exec \"$0\" --config \"$1\"",
                                      std::string(DDPRUN_BINARY_DIR) + "/trainer", path("config.yaml")});
  EXPECT_EQ(full.code, 1) << said(full);
  EXPECT_THAT(full.err, HasSubstr("checkpoint not saved"));
  EXPECT_THAT(full.err, HasSubstr("step-000000005/model.safetensors"));
  EXPECT_THAT(full.out, HasSubstr("resumed from"));
  EXPECT_EQ(read("ck/step-000000002/checksums"), before);
  EXPECT_FALSE(fs::exists(path("ck/step-000000003")));
  expect_ok(run(1));  // room again: goes on from step 2
  EXPECT_EQ(json("p.json")["step"], 5);
}

TEST_F(Trainer, SecondRunOnTheSameFolderIsRefused) {
  write_csv("data.csv", 400, 2);
  set("data.batch_size", "1");
  set("train.step_delay_ms", "50");
  set("checkpoint.dir", path("ck"));
  set("log.every_steps", "1");
  Running job = start(0);
  ASSERT_TRUE(job.wait_for("step 2/"));
  const Finished second = run(0);
  EXPECT_NE(second.code, 0);
  EXPECT_THAT(second.err, HasSubstr("another run writes its checkpoints here"));
  job.signal(SIGTERM);
  const Finished first = job.wait();
  EXPECT_EQ(first.code, 75) << said(first);
}

// `none` and a path say how a job begins. After a restart it goes on from what it has written itself; another job is
// refused as ever.
TEST_F(Trainer, ARestartedJobGoesOnFromItsOwnCheckpoints) {
  write_csv("data.csv", 60, 2);
  set("data.batch_size", "1");
  set("train.epochs", "1");
  set("checkpoint.every_steps", "5");
  set("train.max_steps", "7");
  set("checkpoint.dir", path("first"));
  ASSERT_EQ(run(2).code, 0);
  set("train.max_steps", "0");
  set("train.step_delay_ms", "20");
  for (const std::string& resume : {std::string("none"), path("first")}) {
    SCOPED_TRACE(resume);
    const std::string folder = resume == "none" ? "none" : "path";
    set("checkpoint.resume", resume);
    set("checkpoint.dir", path(folder));
    set("output.metrics", path(folder + ".jsonl"));
    Running job = start(2, {"--max-restarts=1"});
    for (int i = 0; i < 3000 && !fs::exists(path(folder + "/step-000000010")); ++i) ::usleep(20000);
    const std::vector<Worker> workers = workers_of(job.pid());
    ASSERT_FALSE(workers.empty());
    ASSERT_EQ(::kill(workers.back().pid, SIGKILL), 0);
    const Finished done = job.wait();
    EXPECT_EQ(done.code, 0) << said(done);
    EXPECT_THAT(done.out, HasSubstr("resumed from " + path(folder) + "/step-0000000"));
    EXPECT_EQ(lines_of(folder + ".jsonl"), resume == "none" ? 30 : 30 - 7);
    const Finished another = run(2);
    EXPECT_EQ(another.code, 78) << said(another);
    EXPECT_THAT(another.err, HasSubstr("already has checkpoints up to step 30"));
  }
}

// A script may stand between launcher and trainer: the job is still known.
TEST_F(Trainer, AJobIsKnownBehindAScriptToo) {
  write_csv("data.csv", 60, 2);
  set("train.epochs", "1");
  set("data.batch_size", "2");
  set("checkpoint.resume", "none");
  set("checkpoint.dir", path("ck"));
  const std::string trainer = std::string(DDPRUN_BINARY_DIR) + "/trainer --config " + write_config();
  const Finished done =
      runner().run({"ddprun", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python", "/bin/sh", "-c",
                    fmt::format("if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then {0} --set train.max_steps=5; exit 1; fi\n"
                                "{0}; exit $?",
                                trainer)});
  EXPECT_EQ(done.code, 0) << said(done);
  EXPECT_THAT(done.out, HasSubstr("resumed from " + path("ck") + "/step-000000005"));
  EXPECT_THAT(done.out, HasSubstr("finished after step 15"));
}

// `none` is how the job began: when a node joins, all go on from what was saved, whichever node has rank 0 now.
TEST_F(Trainer, ANodeThatJoinsGoesOnUnderResumeNone) {
  write_csv("data.csv", 300, 2);
  set("data.batch_size", "1");
  set("train.epochs", "1");
  set("checkpoint.every_steps", "5");
  set("checkpoint.resume", "none");
  set("checkpoint.dir", path("ck"));
  set("output.metrics", path("m.jsonl"));
  const std::string endpoint = "--rdzv-endpoint=127.0.0.1:" + free_port();
  // Alone it takes 30 s: time for the other to come.
  const std::string trainer =
      fmt::format("exec {}/trainer --config {} --set train.step_delay_ms=$((WORLD_SIZE == 1 ? 100 : 0))",
                  DDPRUN_BINARY_DIR, write_config());
  const auto node = [&] {
    return runner().start({"ddprun", "--nnodes=1:2", "--rdzv-backend=c10d", endpoint, "--rdzv-id=joins",
                           "--rdzv-conf=last_call_timeout=1", "--no-python", "/bin/sh", "-c", trainer});
  };
  Running first = node();
  for (int i = 0; i < 3000 && !fs::exists(path("ck/step-000000010")); ++i) ::usleep(20000);
  Running second = node();
  const Finished one = first.wait();
  const Finished two = second.wait();
  EXPECT_EQ(one.code, 0) << said(one) << said(two);
  EXPECT_EQ(two.code, 0) << said(one) << said(two);
  EXPECT_THAT(one.out + two.out, HasSubstr("resumed from " + path("ck") + "/step-"));
  EXPECT_THAT(one.out + two.out, HasSubstr("2 rank(s)"));
  EXPECT_GT(lines_of("m.jsonl"), 150);
  EXPECT_LT(lines_of("m.jsonl"), 300);
}

}  // namespace
}  // namespace ddprun::testing
