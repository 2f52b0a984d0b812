#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/surface_flags.h"
#include "tests/support/surface_held_port.h"
#include "tests/support/surface_run.h"

// Flags about the workers: their output, files and devices, signals, and what they leave.
namespace {

using ddprun::testing::Flags;
using ddprun::testing::HeldPort;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST_F(Flags, RoleAndLogLinePrefixTemplate) {
  auto run = sh({"--role=trainer", "--tee=3"}, "echo $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE");
  EXPECT_EQ(run.out, "[trainer0]:trainer 0 1\n");
  run = sh({"--role=t", "--tee=1", "--log-line-prefix-template=<${role_name}|${local_rank}|${rank}|${bogus}> "},
           "echo x");
  EXPECT_EQ(run.out, "<t|0|0|${bogus}> x\n");
  runner.environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "E:";
  EXPECT_EQ(sh({"--tee=1"}, "echo x").out, "E:x\n");
}

TEST_F(Flags, ModuleRunPathNoPython) {
  runner.write("mod.py",
               "import sys, os; print(__name__, sys.argv[1:], sys.flags.unbuffered if hasattr(sys.flags, "
               "'unbuffered') else '', flush=True)\n");
  auto run = ddprun({"-m", "mod", "a", "-b"});
  EXPECT_THAT(run.out, HasSubstr("__main__ ['a', '-b']")) << run.err;
  run = ddprun({"--module", "mod"});
  EXPECT_THAT(run.out, HasSubstr("__main__ []")) << run.err;
  run = ddprun({"--run-path", "mod.py", "c"});
  EXPECT_THAT(run.out, HasSubstr("__main__ ['c']")) << run.err;
  runner.write("boom.py", "raise ValueError('the flux is NaN')\n");
  run = ddprun({"--run-path", "boom.py"});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("ValueError: the flux is NaN"));
  run = ddprun({"--no-python", "printf", "%s", "x y"});
  EXPECT_EQ(run.out, "x y");
  refused({"-m"}, "--module runs a python module");
}

TEST_F(Flags, LogDirRedirectsTee) {
  const std::string script = "echo out $RANK; echo err $RANK >&2";
  auto run = sh({"--nproc-per-node=2", "--log-dir=a/b", "--redirects=3"}, script);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(log_tree("a/b"), ElementsAre("attempt_0/0/stderr.log", "attempt_0/0/stdout.log", "attempt_0/1/stderr.log",
                                           "attempt_0/1/stdout.log"));
  EXPECT_EQ(log_text("a/b", "attempt_0/1/stderr.log"), "err 1\n");
  run = sh({"--nproc-per-node=2", "--log-dir=c", "-r", "0:1", "-t", "1:2"}, script);
  EXPECT_EQ(run.out, "out 1\n");
  EXPECT_THAT(run.err, AllOf(HasSubstr("[default1]:err 1\n"), HasSubstr("err 0\n")));
  EXPECT_THAT(log_tree("c"), ElementsAre("attempt_0/0/stdout.log", "attempt_0/1/stderr.log"));
  run = sh({"--log-dir=/dev/null", "--tee=3"}, "echo \"[$TORCHELASTIC_ERROR_FILE]\"");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("[]\n"));
  runner.write("file", "");
  run = sh({"--log-dir=" + runner / "file"}, "echo ran");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr(runner / "file"));
  EXPECT_EQ(run.out, "");
  refused({"--redirects=4"}, "--redirects: '4' is neither");
}

TEST_F(Flags, LocalRanksFilter) {
  const auto run = sh({"--nproc-per-node=3", "--local-ranks-filter=1", "--log-dir=l", "--tee=0:1"}, "echo out $RANK");
  EXPECT_EQ(run.out, "out 1\n");
  EXPECT_EQ(log_text("l", "attempt_0/0/stdout.log"), "out 0\n");
}

TEST_F(Flags, DuplicateFilters) {
  const auto run = sh({"--nproc-per-node=2", "--log-dir=l", "--tee=3", "--duplicate-stdout-filters=alpha,be,,ta",
                       "--duplicate-stderr-filters=gamma"},
                      "echo alpha; echo 'be,ta'; echo other; echo gamma >&2; echo alpha >&2");
  EXPECT_EQ(run.code, 0) << run.err;
  const auto out = log_text("l", "attempt_0/filtered_stdout.log");
  EXPECT_THAT(out, AllOf(HasSubstr("alpha"), HasSubstr("be,ta"), Not(HasSubstr("other"))));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 4) << out;
  EXPECT_THAT(log_text("l", "attempt_0/filtered_stderr.log"), AllOf(HasSubstr("gamma"), Not(HasSubstr("alpha"))));
}

TEST_F(Flags, LogMaxSize) {
  const auto run = sh({"--log-dir=l", "--redirects=1", "--log-max-size=4K"},
                      "i=0; while [ $i -lt 400 ]; do echo 'a line of thirty-two characters.'; i=$((i+1)); done");
  EXPECT_EQ(run.code, 0) << run.err;
  const auto tree = log_tree("l");
  EXPECT_THAT(tree, testing::Contains("attempt_0/0/stdout.log"));
  EXPECT_THAT(tree, testing::Contains("attempt_0/0/stdout.log.1"));
  EXPECT_LE(log_text("l", "attempt_0/0/stdout.log").size(), 4096u);
  refused({"--log-max-size=big"}, "--log-max-size");
}

TEST_F(Flags, NumaBinding) {
  if (::sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "needs two CPUs";
  runner.environment["HWLOC_SYNTHETIC"] = "node:2 core:1 pu:1";
  const auto run = sh({"--nproc-per-node=2", "--numa-binding=node"},
                      "echo $RANK $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.lines(), ElementsAre("0 0", "1 1"));
  EXPECT_THAT(run.err, HasSubstr("local rank 1 runs on CPUs 1"));
  refused({"--numa-binding=moon"}, "--numa-binding");
}

TEST_F(Flags, SignalsToHandleShutdownTimeout) {
  auto run = runner.start({"ddprun", "--nproc-per-node=2", "--signals-to-handle=SIGUSR1", "--no-python", "sh", "-c",
                           "trap 'echo usr1 $RANK; exit 0' USR1; echo up $RANK; while :; do sleep 0.05; done"});
  ASSERT_TRUE(run.wait_for("up 0") && run.wait_for("up 1"));
  run.signal(SIGUSR1);
  auto end = run.wait();
  EXPECT_EQ(end.code, 128 + SIGUSR1);
  EXPECT_THAT(end.out, AllOf(HasSubstr("usr1 0"), HasSubstr("usr1 1")));

  auto stubborn = runner.start({"ddprun", "--shutdown-timeout=1", "--no-python", "sh", "-c",
                                "trap '' TERM; echo ready; while :; do sleep 0.05; done"});
  ASSERT_TRUE(stubborn.wait_for("ready"));
  const auto before = std::chrono::steady_clock::now();
  stubborn.signal(SIGTERM);
  end = stubborn.wait();
  EXPECT_EQ(end.code, 128 + SIGTERM);
  const auto took = std::chrono::steady_clock::now() - before;
  EXPECT_GE(took, std::chrono::milliseconds(950));
  EXPECT_LT(took, std::chrono::seconds(15));
  EXPECT_THAT(sh({"--signals-to-handle=SIGTERM,SIGFOO"}, "true").err, HasSubstr("there is no signal 'SIGFOO'"));
  refused({"--shutdown-timeout=-1"}, "--shutdown-timeout");
}

TEST_F(Flags, SignalsToForwardLetTheJobGoOn) {
  auto run = runner.start({"ddprun", "--nproc-per-node=2", "--signals-to-forward=USR2,WINCH", "--no-python", "sh", "-c",
                           "trap 'echo got $RANK; exit 0' WINCH; echo up $RANK; while :; do sleep 0.05; done"});
  ASSERT_TRUE(run.wait_for("up 0") && run.wait_for("up 1"));
  run.signal(SIGWINCH);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.lines(), ElementsAre("got 0", "got 1", "up 0", "up 1"));
  refused({"--signals-to-forward=SIGTERM"}, "stands in --signals-to-handle too");
}

TEST_F(Flags, SignalScope) {
  // A helper in the worker's process group, as a data loader is.
  const std::string script =
      "sh -c 'trap \"echo loader; exit 0\" USR1; : >ready; while :; do sleep 0.02; done' & "
      "trap 'echo worker; sleep 0.2; kill -KILL $!; exit 0' USR1; until [ -e ready ]; do sleep 0.01; done; "
      "echo both >ready; while :; do sleep 0.02; done";
  for (const bool group : {false, true}) {
    std::filesystem::remove(runner / "ready");
    const std::string scope = group ? "--signal-scope=group" : "--signal-scope=worker";
    auto run = runner.start({"ddprun", scope, "--no-python", "sh", "-c", script});
    ASSERT_TRUE(run.wait_for("started 1 worker"));
    while (runner.read("ready") != "both\n") ::usleep(10'000);
    run.signal(SIGUSR1);
    const auto end = run.wait();
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_THAT(end.out, HasSubstr("worker"));
    EXPECT_EQ(end.out.find("loader") != std::string::npos, group) << end.out;
  }
  refused({"--signal-scope=all"}, "--signal-scope");
}

TEST_F(Flags, Leftovers) {
  const std::string script = "rm -f pid; setsid sh -c 'echo $$ >pid; sleep 0.5; echo done >upload; exec sleep $0' ";
  auto run = sh({"--leftovers=wait"}, script + "0.1 & sleep 0.1");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(runner.read("upload"), "done\n");
  run = sh({"--leftovers=keep"}, script + "300 & until [ -s pid ]; do sleep 0.01; done");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("left running (--leftovers=keep): pid"));
  EXPECT_EQ(::kill(std::atoi(runner.read("pid").c_str()), SIGKILL), 0);
  run = sh({"--leftovers=end"}, "(trap '' TERM; while :; do sleep 0.1; done) & exit 3");
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.err, AllOf(HasSubstr("gets SIGTERM: pid"), HasSubstr("killed with SIGKILL: pid")));
  refused({"--leftovers=some"}, "--leftovers");
}

TEST_F(Flags, SignalWhileWaitingForNodesEndsAtOnce) {
  HeldPort port;
  auto run = runner.start({"ddprun", "--nnodes=2", "--rdzv-backend=c10d",
                           "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.release()), "--no-python", "true"});
  ASSERT_TRUE(run.wait_for("hosting the rendezvous"));
  run.signal(SIGTERM);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 128 + SIGTERM);
  EXPECT_LT(end.lasted, std::chrono::seconds(20));
}

TEST_F(Flags, SecondInterruptEndsAtOnce) {
  auto run = runner.start({"ddprun", "--nproc-per-node=2", "--no-python", "sh", "-c",
                           "trap '' INT TERM; echo up $RANK; while :; do sleep 0.05; done"});
  ASSERT_TRUE(run.wait_for("up 0") && run.wait_for("up 1"));
  run.signal(SIGINT);
  ASSERT_TRUE(run.wait_for("SIGINT"));
  const auto before = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - before < std::chrono::milliseconds(400)) ::usleep(10'000);
  run.signal(SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 128 + SIGINT);
  EXPECT_LT(end.lasted, std::chrono::seconds(25));  // not the 30 s of --shutdown-timeout
}

TEST_F(Flags, VirtualLocalRankAndDevices) {
  const std::string script = "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES";
  auto run = sh({"--nproc-per-node=2", "--virtual-local-rank", "--devices=4,6", "--preflight=off"}, script);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.lines(), ElementsAre("0 0 4", "1 0 6"));
  run = sh({"--nproc-per-node=2", "--devices=4,6", "--preflight=off"}, script);
  EXPECT_THAT(run.lines(), ElementsAre("0 0 4,6", "1 1 4,6"));
  runner.environment["CUDA_VISIBLE_DEVICES"] = "3";
  run = sh({"--nproc-per-node=2", "--virtual-local-rank"}, script);
  EXPECT_NE(run.code, 0);
  EXPECT_THAT(run.err, HasSubstr("local rank 1 has no device of its own in CUDA_VISIBLE_DEVICES=3"));
  EXPECT_EQ(run.out, "");
}

TEST_F(Flags, LocalRankMacro) {
  const auto run = ddprun({"--nproc-per-node=2", "--no-python", "printf", "%s\n", "log${local_rank}.txt", "${RANK}"});
  EXPECT_THAT(run.lines(), ElementsAre("${RANK}", "${RANK}", "log0.txt", "log1.txt"));
}

}  // namespace
