#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/process/worker/trainer_support.h"

// What the world does to a run: reads that hang, signals to one rank, a launcher that dies, a full disk, folders that
// cannot be written.
namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

// A 4x4 picture.
const std::string kPng(
    "\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x04\x00\x00\x00\x04\x08\x02\x00\x00"
    "\x00\x26\x93\x09\x29\x00\x00\x00\x1d\x49\x44\x41\x54\x78\xda\x63\x60\x08\xa8\x40\x20\x8d\x80\x0a\x38\x62\x08\x08"
    "\xa8\x80\x23\x86\x8a\x80\x0a\x38\x02\x00\x7a\x63\x10\x41\x6a\xfb\x03\x03\x00\x00\x00\x00\x49\x45\x4e\x44\xae\x42"
    "\x60\x82",
    86);

// Holds a write lease on a file: another process's open() of it hangs, as on a file server that is gone, until the
// lease goes or the kernel loses patience (/proc/sys/fs/lease-break-time, 45 s).
class StuckFile {
 public:
  explicit StuckFile(const std::string& path) {
    ::signal(SIGIO, SIG_IGN);  // how the kernel tells us that somebody waits
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    held_ = ::fcntl(fd_, F_SETLEASE, F_WRLCK) == 0;
  }
  ~StuckFile() { release(); }
  StuckFile(const StuckFile&) = delete;
  StuckFile& operator=(const StuckFile&) = delete;
  bool held() const { return held_; }
  void release() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  bool held_ = false;
};

class TrainerHardTimes : public ::testing::Test, public TrainerRunner {
 protected:
  // Four pictures in one class; rank 1 of 2 reads 2.png and 4.png.
  void use_pictures() {
    fs::create_directories(path("train/a"));
    for (const char* name : {"1", "2", "3", "4"}) runner().write(fmt::format("train/a/{}.png", name), kPng);
    set("model.name", "resnet18");
    set("model.stem", "small");
    set("model.width", "4");
    set("model.outputs", "2");
    unset("model.init");
    set("data.format", "image_folder");
    set("data.train", path("train"));
    set("data.image_size", "8");
    set("data.batch_size", "1");
    set("loss.name", "cross_entropy");
    set("optimizer.lr", "0.001");
    set("train.epochs", "1");
  }
};

// data.read_timeout_s is longer than ddp.timeout_s, and a collective may not take that long: still every rank ends for
// the true reason, and soon, though the read never comes back.
TEST_F(TrainerHardTimes, AReadThatHangsIsNamedAndEndsTheRun) {
  use_pictures();
  StuckFile stuck(path("train/a/2.png"));
  ASSERT_TRUE(stuck.held());
  set("data.read_timeout_s", "2");
  set("ddp.timeout_s", "1");
  for (const char* workers : {"0", "2"}) {
    set("data.num_workers", workers);
    const Finished ended = run(2);
    EXPECT_EQ(ended.code, 1) << said(ended);
    EXPECT_THAT(ended.err, HasSubstr("trainer: rank 1: batch 1 of epoch 1 was not read within 2 s"));
    EXPECT_THAT(ended.err, HasSubstr("in work: " + path("train/a/2.png")));
    EXPECT_THAT(ended.err, HasSubstr("rank 1 has waited"));
    EXPECT_THAT(ended.err, Not(HasSubstr("missing")));
    EXPECT_THAT(ended.err, HasSubstr("trainer FAILED: rank 1 on"));
    EXPECT_EQ(own_lines(ended), 1) << said(ended);
  }
}

TEST_F(TrainerHardTimes, ASlowReadIsWaitedFor) {
  use_pictures();
  for (const char* accumulate : {"1", "2"}) {
    StuckFile stuck(path("train/a/4.png"));
    ASSERT_TRUE(stuck.held());
    set("train.accumulate", accumulate);
    set("data.read_timeout_s", "40");
    set("ddp.timeout_s", "1");
    Running job = start(2);
    ASSERT_TRUE(job.wait_for("rank 1 has waited"));
    stuck.release();
    const Finished ended = job.wait();
    EXPECT_EQ(ended.code, 0) << said(ended);
    EXPECT_THAT(ended.err, HasSubstr("rank 1 has its data after"));
  }
}

// The first of two micro-batches, or the last: the other rank is in another collective then.
TEST_F(TrainerHardTimes, AnUnreadableSampleInAnyMicroBatchIsTheReason) {
  use_pictures();
  set("train.accumulate", "2");
  set("ddp.sync_buffers", "step");
  for (const char* name : {"2", "4"}) {
    const std::string file = fmt::format("train/a/{}.png", name);
    runner().write(file, "no picture");
    const Finished ended = run(2);
    EXPECT_EQ(ended.code, 78) << said(ended);
    EXPECT_THAT(ended.err, HasSubstr("trainer: rank 1: " + path(file)));
    EXPECT_THAT(ended.err, Not(HasSubstr("ranks disagree")));
    EXPECT_EQ(own_lines(ended), 1) << said(ended);
    runner().write(file, kPng);
  }
}

TEST_F(TrainerHardTimes, AStopDuringAReadThatHangsSavesAndEnds) {
  use_pictures();
  StuckFile stuck(path("train/a/4.png"));
  ASSERT_TRUE(stuck.held());
  set("data.num_workers", "0");
  set("data.read_timeout_s", "300");
  set("ddp.timeout_s", "1");
  set("checkpoint.dir", path("ck"));
  Running job = start(2);
  ASSERT_TRUE(job.wait_for("rank 1 has waited"));
  job.signal(SIGTERM);
  const Finished ended = job.wait();
  EXPECT_EQ(ended.code, 75) << said(ended);
  EXPECT_THAT(ended.out, HasSubstr("stopped by a signal after step 1; state saved"));
  EXPECT_TRUE(fs::exists(path("ck/step-000000001/model.safetensors")));
}

// The epoch's steps are done and saved; a resumed run begins with the validation that was left out.
TEST_F(TrainerHardTimes, AStopDuringTheValidationSavesAndGoesOn) {
  use_pictures();
  fs::create_directories(path("val/a"));
  for (const char* name : {"1", "2"}) runner().write(fmt::format("val/a/{}.png", name), kPng);
  set("data.validation", path("val"));
  set("ddp.timeout_s", "1");
  set("checkpoint.dir", path("ck"));
  StuckFile stuck(path("val/a/2.png"));
  ASSERT_TRUE(stuck.held());
  {
    Running job = start(2);
    ASSERT_TRUE(job.wait_for("rank 1 has waited"));
    job.signal(SIGTERM);
    const Finished ended = job.wait();
    EXPECT_EQ(ended.code, 75) << said(ended);
    EXPECT_THAT(ended.out, HasSubstr("stopped by a signal after step 2; state saved"));
    EXPECT_THAT(ended.out, Not(HasSubstr("epoch 1/1 done")));
  }
  stuck.release();
  const Finished again = run(2);
  EXPECT_EQ(again.code, 0) << said(again);
  EXPECT_THAT(again.out, HasSubstr("at step 2"));
  EXPECT_THAT(again.out, HasSubstr("epoch 1/1 done: mean loss"));
  EXPECT_THAT(again.out, HasSubstr("finished after step 2"));
}

// In the validation, and while files are opened: each has its own way to wait.
TEST_F(TrainerHardTimes, OtherReadsThatHangEndTheRunToo) {
  use_pictures();
  fs::create_directories(path("val/a"));
  for (const char* name : {"1", "2"}) runner().write(fmt::format("val/a/{}.png", name), kPng);
  set("data.validation", path("val"));
  set("data.read_timeout_s", "2");
  set("ddp.timeout_s", "1");
  {
    StuckFile stuck(path("val/a/2.png"));
    ASSERT_TRUE(stuck.held());
    const Finished ended = run(2);
    EXPECT_EQ(ended.code, 1) << said(ended);
    EXPECT_THAT(ended.err, HasSubstr("trainer: rank 1: data.validation: batch 1 of epoch 1 was not read within 2 s"));
    EXPECT_THAT(ended.err, HasSubstr("val/a/2.png"));
    EXPECT_EQ(own_lines(ended), 1) << said(ended);
  }
  TrainerRunner table;
  table.write_csv("data.csv", 8, 2);
  table.set("data.read_timeout_s", "1");
  StuckFile stuck(table.path("data.csv"));
  ASSERT_TRUE(stuck.held());
  const Finished ended = table.run(2);
  EXPECT_EQ(ended.code, 1) << said(ended);
  EXPECT_THAT(ended.err, HasSubstr("data.train or data.validation did not answer within 2 s"));
  stuck.release();
  table.runner().write("w.safetensors", "");
  table.set("model.weights", table.path("w.safetensors"));
  StuckFile weights(table.path("w.safetensors"));
  ASSERT_TRUE(weights.held());
  const Finished weightless = table.run(2);
  EXPECT_EQ(weightless.code, 1) << said(weightless);
  EXPECT_THAT(weightless.err, HasSubstr("model.weights: the file did not answer within 2 s"));
}

class TrainerStopsOneRank : public TrainerHardTimes, public ::testing::WithParamInterface<std::tuple<int, int>> {};

// Slurm and Kubernetes may warn one process only: all ranks stop after the same step and save.
TEST_P(TrainerStopsOneRank, AllStopAfterTheSameStep) {
  const auto [signal, rank] = GetParam();
  write_csv("data.csv", 400, 3);
  set("data.batch_size", "1");
  set("train.step_delay_ms", "20");
  set("checkpoint.dir", path("ck"));
  set("output.metrics", path("m.jsonl"));
  Running job = start(2);
  wait_for_lines("m.jsonl", 3);
  for (const Worker& worker : workers_of(job.pid())) {
    if (worker.rank != rank) continue;
    ASSERT_EQ(::kill(worker.pid, signal), 0);
  }
  const Finished stopped = job.wait();
  EXPECT_EQ(stopped.code, 75) << said(stopped);
  EXPECT_THAT(stopped.out, HasSubstr("state saved"));
  const int steps = lines_of("m.jsonl");
  EXPECT_LT(steps, 400);
  EXPECT_TRUE(fs::exists(path(fmt::format("ck/step-{:09}/state.json", steps))));
}
INSTANTIATE_TEST_SUITE_P(AnySignal, TrainerStopsOneRank,
                         ::testing::Combine(::testing::Values(SIGTERM, SIGUSR1), ::testing::Values(0, 1)),
                         [](const auto& test) {
                           return fmt::format("{}Rank{}", std::get<0>(test.param) == SIGTERM ? "TERM" : "USR1",
                                              std::get<1>(test.param));
                         });

// SIGUSR2 on any rank: all save after the same step and train on.
TEST_F(TrainerHardTimes, Usr2SavesAndTheRunGoesOn) {
  write_csv("data.csv", 60, 3);
  set("data.batch_size", "1");
  set("train.step_delay_ms", "20");
  set("train.epochs", "1");
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "0");
  set("checkpoint.keep", "99");
  set("output.indices", path("i"));  // a save is collective then: no rank may be a step ahead
  set("output.metrics", path("m.jsonl"));
  Running job = start(2);
  wait_for_lines("m.jsonl", 3);
  for (const Worker& worker : workers_of(job.pid())) {
    if (worker.rank == 1) {
      ASSERT_EQ(::kill(worker.pid, SIGUSR2), 0);
    }
  }
  const Finished done = job.wait();
  EXPECT_EQ(done.code, 0) << said(done);
  EXPECT_THAT(done.out, HasSubstr("saving (SIGUSR2), training goes on"));
  EXPECT_EQ(lines_of("m.jsonl"), 30);
  int saved = 0;
  for (const auto& entry : fs::directory_iterator(path("ck"))) {
    saved += entry.path().filename().string().rfind("step-", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(saved, 2);  // the one asked for and the last
}

// Only the launcher is killed, while a checkpoint is being written: no worker is left, and what is on the disk is good.
TEST_F(TrainerHardTimes, ALauncherKilledDuringASaveLeavesAGoodCheckpoint) {
  write_csv("data.csv", 40, 20000);
  set("data.batch_size", "1");
  set("optimizer.lr", "1e-6");
  set("optimizer.momentum", "0.9");
  set("train.epochs", "1");
  set("output.params", path("whole.json"));
  const Finished whole = run(2);
  ASSERT_EQ(whole.code, 0) << said(whole);
  set("output.params", path("p.json"));
  set("checkpoint.dir", path("ck"));
  set("checkpoint.every_steps", "1");
  for (int kills = 0; kills < 3; ++kills) {
    Running job = start(2);
    bool saving = false;
    for (int i = 0; i < 60'000 && !saving && !fs::exists(path("p.json")); ++i) {
      ::usleep(1000);
      std::error_code gone;
      for (fs::directory_iterator it(path("ck"), gone), end; !gone && it != end; it.increment(gone)) {
        saving = saving || (it->path().filename().string().rfind(".writing-", 0) == 0 && fs::exists(path("ck/latest")));
      }
    }
    ASSERT_TRUE(saving) << "no save was seen in run " << kills;
    const std::vector<Worker> workers = workers_of(job.pid());
    job.signal(SIGKILL);
    job.wait();
    for (const Worker& worker : workers) {
      for (int i = 0; i < 3000 && ::kill(worker.pid, 0) == 0; ++i) ::usleep(20000);
      EXPECT_NE(::kill(worker.pid, 0), 0) << "rank " << worker.rank << " is still there";
    }
  }
  const Finished last = run(2);
  ASSERT_EQ(last.code, 0) << said(last);
  EXPECT_THAT(last.out, HasSubstr("resumed from"));
  EXPECT_EQ(read("p.json"), read("whole.json"));
}

// A file system of 1 MB that is full but for a little, two ranks under ddprun: the run says so, trains on, ends with an
// error since its last save failed, and has not lost what it had. With room again it goes on from there.
TEST_F(TrainerHardTimes, AFullDiskUnderTheLauncher) {
  write_csv("data.csv", 8, 30000);
  set("data.batch_size", "1");
  set("optimizer.lr", "1e-6");
  set("train.epochs", "1");
  set("checkpoint.every_steps", "1");
  set("checkpoint.keep", "9");
  set("checkpoint.dir", path("disk/ck"));
  set("output.metrics", path("m.jsonl"));
  fs::create_directories(path("disk"));
  std::string ddprun;
  for (const std::string& word : command(2))
    ddprun += (ddprun.empty() ? std::string(DDPRUN_BINARY_DIR) + "/" : " ") + word;
  const std::string script = fmt::format(
      "set -u; mount -t tmpfs -o size=1m none {0}/disk || exit 99\n"
      "{1} --set train.max_steps=2 || exit 98\n"
      "head -c 700000 /dev/zero >{0}/disk/filler; cksum {0}/disk/ck/step-*/* >{0}/before\n"
      "{1} >{0}/full.out 2>{0}/full.err; echo $? >{0}/full.code\n"
      "cksum {0}/disk/ck/step-*/* >{0}/after; ls -A {0}/disk/ck >{0}/names; rm {0}/disk/filler\n"
      "{1} >{0}/again.out 2>&1; echo $? >{0}/again.code\n",
      runner().folder(), ddprun);
  const Finished all = runner().run({"/usr/bin/unshare", "--mount", "/bin/sh", "-c", script});
  ASSERT_EQ(all.code, 0) << said(all);
  EXPECT_EQ(read("full.code"), "1\n") << read("full.out") << read("full.err");
  EXPECT_THAT(read("full.err"), HasSubstr("checkpoint not saved"));
  EXPECT_THAT(read("full.err"), HasSubstr("No space left on device"));
  EXPECT_THAT(read("full.err"), HasSubstr("the one of step 2 is there"));
  EXPECT_EQ(read("before"), read("after"));
  EXPECT_THAT(read("names"), Not(HasSubstr(".writing")));
  EXPECT_EQ(read("again.code"), "0\n") << read("again.out");
  EXPECT_THAT(read("again.out"), HasSubstr("at step 2"));
  EXPECT_EQ(lines_of("m.jsonl"), 4);
}

TEST_F(TrainerHardTimes, WhatCannotBeWrittenIsFoundAtTheStart) {
  write_csv("data.csv", 8, 2);
  runner().write("file", "x");
  for (const char* key :
       {"checkpoint.dir", "log.file", "output.metrics", "output.indices", "output.tensorboard", "output.params"}) {
    TrainerRunner fresh;
    fresh.set("data.train", path("data.csv"));
    fresh.set(key, path("file/below"));
    const Finished wrong = fresh.run(2);
    EXPECT_EQ(wrong.code, 78) << key << "\n" << said(wrong);
    EXPECT_THAT(wrong.err, HasSubstr(fmt::format("{}: cannot", key)));
    EXPECT_THAT(wrong.err, HasSubstr("Not a directory"));
    EXPECT_THAT(wrong.out, Not(HasSubstr("epoch 1")));
    EXPECT_EQ(own_lines(wrong), 1) << said(wrong);
  }
  TrainerRunner folder;  // the only file that is opened at the end
  folder.set("data.train", path("data.csv"));
  folder.set("output.params", path("."));
  const Finished wrong = folder.run(2);
  EXPECT_EQ(wrong.code, 78) << said(wrong);
  EXPECT_THAT(wrong.err, HasSubstr("output.params: cannot write " + path(".") + ": Is a directory"));
  // Nobody asked for the default log file: a folder that cannot be written is no reason not to train.
  fs::create_directories(path("work/train.log"));
  TrainerRunner quiet;
  quiet.set("data.train", path("data.csv"));
  quiet.unset("log.file");
  const std::string config = quiet.write_config();
  const Finished fine = runner().run({"/bin/sh", "-c", "cd \"$0\" && exec \"$1\" --config \"$2\"", path("work"),
                                      std::string(DDPRUN_BINARY_DIR) + "/trainer", config});
  EXPECT_EQ(fine.code, 0) << said(fine);
  EXPECT_THAT(fine.err, HasSubstr("no log file: cannot write train.log: Is a directory"));
}

// Every rank reads its own files: what must be the same is compared before anything else is done.
TEST_F(TrainerHardTimes, RanksThatDifferAreToldSo) {
  write_csv("data.csv", 8, 2);
  TrainerRunner other;  // as many rows, other numbers
  other.write_csv("data.csv", 8, 2);
  std::string rows = other.read("data.csv");
  rows[rows.size() - 3] = rows[rows.size() - 3] == '1' ? '2' : '1';
  runner().write("other.csv", rows);
  write_csv("more.csv", 9, 2);
  const std::string config = write_config();
  const std::string trainer = std::string(DDPRUN_BINARY_DIR) + "/trainer --config " + config;
  const std::pair<std::string, std::string> cases[] = {
      {"--set train.seed=$((8 - RANK))", "train.seed: rank 0 has 8, rank 1 has 7"},
      {"--set data.batch_size=$((4 + RANK))", "data.batch_size: rank 0 has 4, rank 1 has 5"},
      {"--set data.train=" + path("$([ $RANK = 1 ] && echo other || echo data).csv"),
       "data.train: rank 0 has csv, inputs [2], targets [1], 0 classes, content "},
      {"--set data.train=" + path("$([ $RANK = 1 ] && echo more || echo data).csv"),
       "training samples: rank 0 has 8, rank 1 has 9"},
      {"--set checkpoint.dir=" + path("ck") + " --set checkpoint.every_steps=$((RANK + 1))",
       "checkpoint.every_steps: rank 0 has 1, rank 1 has 2"},
  };
  for (const auto& [set_words, message] : cases) {
    const Finished wrong = runner().run({"ddprun", "--standalone", "--nproc-per-node=2", "--no-python", "/bin/sh", "-c",
                                         "exec " + trainer + " " + set_words});
    EXPECT_EQ(wrong.code, 78) << said(wrong);
    EXPECT_THAT(wrong.err, HasSubstr("trainer: rank 1: " + message));
    EXPECT_EQ(own_lines(wrong), 1) << said(wrong);
  }
}

TEST_F(TrainerHardTimes, AStoreThatIsNotThereIsNamedWhileItIsWaitedFor) {
  write_csv("data.csv", 8, 2);
  for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", "1"},
                                                                      {"WORLD_SIZE", "2"},
                                                                      {"LOCAL_RANK", "1"},
                                                                      {"LOCAL_WORLD_SIZE", "2"},
                                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                                      {"MASTER_PORT", "1"}}) {
    runner().environment[name] = value;
  }
  Running alone = start(0);
  EXPECT_TRUE(alone.wait_for("rank 1 waits for the worker store (MASTER_ADDR, MASTER_PORT)"));
  alone.signal(SIGTERM);
  EXPECT_EQ(alone.wait().code, 128 + SIGTERM);
}

// Its error feedback is not saved: who resumes is told that the numbers are not those of a run in one piece.
TEST_F(TrainerHardTimes, PowerSgdSaysThatItStartsAnew) {
  write_csv("data.csv", 16, 8);
  set("ddp.compression", "powersgd");
  set("ddp.force_compression", "true");
  set("train.max_steps", "2");
  set("checkpoint.dir", path("ck"));
  EXPECT_THAT(run(2).out, ::testing::Not(HasSubstr("PowerSGD")));
  set("train.max_steps", "0");
  const Finished again = run(2);
  EXPECT_EQ(again.code, 0) << said(again);
  EXPECT_THAT(again.out, HasSubstr("PowerSGD's error feedback is not in checkpoints"));
}

TEST_F(TrainerHardTimes, WrongDataFilesSaySo) {
  write_csv("good.csv", 8, 2);
  runner().write("empty.csv", "");
  runner().write("heading.csv", "a,b,c\n");
  ASSERT_EQ(::mkfifo(path("pipe.csv").c_str(), 0600), 0);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {path("pipe.csv"), "pipe.csv: is a pipe, socket or device, not a file"},
      {path(""), "is a folder, not a file"},
      {path("empty.csv"), "empty.csv: no samples"},
      {path("heading.csv"), "heading.csv: no samples"},
      {path("good.csv/x"), "Not a directory"},
  };
  for (const auto& [file, words] : cases) {
    set("data.train", file);
    const Finished wrong = run(2);
    EXPECT_EQ(wrong.code, 78) << said(wrong);
    EXPECT_THAT(wrong.err, HasSubstr("trainer: rank 0: data.train: "));
    EXPECT_THAT(wrong.err, HasSubstr(words));
    EXPECT_EQ(own_lines(wrong), 1) << said(wrong);
  }
}

TEST_F(TrainerHardTimes, AClassFolderThatValidationLacksIsNamed) {
  use_pictures();
  fs::create_directories(path("train/b"));
  fs::create_directories(path("train/c"));
  fs::create_directories(path("val/a"));
  fs::create_directories(path("val/c"));
  for (const char* name : {"train/b/1.png", "train/c/1.png", "val/a/1.png", "val/c/1.png"}) runner().write(name, kPng);
  set("model.outputs", "3");
  set("data.validation", path("val"));
  const Finished wrong = run(2);
  EXPECT_EQ(wrong.code, 78) << said(wrong);
  EXPECT_THAT(wrong.err, HasSubstr(fmt::format("data.validation: class folder 'b' is in {} but not in {}",
                                               path("train"), path("val"))));
  fs::create_directories(path("val/b"));
  fs::create_directories(path("val/d"));
  for (const char* name : {"val/b/1.png", "val/d/1.png"}) runner().write(name, kPng);
  set("model.outputs", "4");
  EXPECT_THAT(run(1).err,
              HasSubstr(fmt::format("class folder 'd' is in {} but not in {}", path("val"), path("train"))));
}

// The commands of deploy/configs/gpt2_bible.yaml, with a smaller model.
TEST_F(TrainerHardTimes, AGptLearnsTheBible) {
  if (!fs::exists("/usr/bin/bible")) GTEST_SKIP() << "Debian packages bible-kjv and bible-kjv-text are not installed";
  const Finished text = runner().run({"/bin/sh", "-c", "bible gen1:1-rev22:21 >" + path("kjv.txt")});
  ASSERT_EQ(text.code, 0) << said(text);
  ASSERT_GT(fs::file_size(path("kjv.txt")), 4'000'000U);
  const Finished tokens = runner().run({"trainer", "tokenize", "--vocabulary", "bytes", "--validation-share", "0.05",
                                        "-o", path("data/kjv"), path("kjv.txt")});
  ASSERT_EQ(tokens.code, 0) << said(tokens);
  std::vector<std::string> argv = {"ddprun",  "--standalone", "--nproc-per-node=2",
                                   "trainer", "--config",     DDPRUN_SOURCE_DIR "/deploy/configs/gpt2_bible.yaml"};
  for (const std::string& value :
       {"data.train=" + path("data/kjv.bin"), std::string("data.validation="), std::string("train.max_steps=20"),
        std::string("schedule.warmup_steps=4"), std::string("optimizer.lr=2e-3"), std::string("model.layers=2"),
        std::string("model.embedding=96"), std::string("model.heads=3"), std::string("data.sequence_length=64"),
        "checkpoint.dir=" + path("ck"), "log.file=" + path("l"), "output.metrics=" + path("m.jsonl"),
        "output.tensorboard=" + path("tb")}) {
    argv.insert(argv.end(), {"--set", value});
  }
  const Finished done = runner().run(argv);
  ASSERT_EQ(done.code, 0) << said(done);
  std::vector<double> losses;
  std::istringstream in(read("m.jsonl"));
  for (std::string line; std::getline(in, line);) losses.push_back(nlohmann::json::parse(line)["loss"].get<double>());
  ASSERT_EQ(losses.size(), 20U);
  EXPECT_NEAR(losses.front(), std::log(256.0), 0.2);
  EXPECT_LT(losses.back(), losses.front() - 1);
}

}  // namespace
}  // namespace ddprun::testing
