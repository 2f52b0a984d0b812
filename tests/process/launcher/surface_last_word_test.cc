#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/surface_run.h"

// The end of a job, seen from the outside: its last words, its report, and what may come in between.
namespace {

using ddprun::testing::ProgramRunner;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(LastWord, SignalsAfterItChangeNothing) {
  ProgramRunner runner;
  for (int i = 0; i < 15; ++i) {
    auto job = runner.start({"ddprun", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", "exit 75"});
    ASSERT_TRUE(job.wait_for("every worker ended with 75"));
    for (const int number : {SIGTERM, SIGUSR1, SIGINT}) job.signal(number);
    const auto end = job.wait();
    EXPECT_EQ(end.code, 75) << end.err;
  }
}

// User and system time of a process, in nanoseconds.
long long cpu_time(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/schedstat");
  long long time = -1;
  file >> time;
  return time;
}

// How often its threads have gone to sleep so far: of one that only waits, hardly ever.
long long waits(pid_t pid) {
  long long count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      long long value = 0;
      if (word == "voluntary_ctxt_switches:" && status >> value) count += value;
    }
  }
  return count;
}

bool appears(const std::string& path) {
  for (int i = 0; i < 6000 && ::access(path.c_str(), F_OK) != 0; ++i) ::usleep(10'000);
  return ::access(path.c_str(), F_OK) == 0;
}

// The log line about the signal would wait in write(2) for ever, and with it everything else.
TEST(LastWord, AStderrThatNobodyReadsMakesTheLauncherNeitherDeafNorBusy) {
  const ProgramRunner runner;
  // More than a pipe takes, less than the hub's queue: then the worker goes on.
  const std::string script =
      "trap '' USR1; yes a line that nobody reads | head -c 300000 >&2; : >" + (runner / "up") + "; exec sleep 300";
  auto job = runner.start(
      {"ddprun", "--standalone", "--nproc-per-node=2", "--shutdown-timeout=1", "--no-python", "sh", "-c", script});
  ASSERT_TRUE(appears(runner / "up"));
  for (int i = 0; i < 200; ++i) job.signal(SIGUSR1);  // each has its line
  const long long before = cpu_time(job.pid());
  ::usleep(500'000);
  EXPECT_LT(cpu_time(job.pid()) - before, 100'000'000);
  job.signal(SIGTERM);
  siginfo_t info = {};
  for (int i = 0; i < 6000 && info.si_pid == 0; ++i) {
    ::usleep(10'000);
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(job.pid()), &info, WEXITED | WNOWAIT | WNOHANG), 0);
  }
  EXPECT_EQ(info.si_pid, job.pid());  // nobody has read a byte
  EXPECT_EQ(job.wait().code, 143);
}

TEST(LastWord, AQuietLauncherUsesNoCpu) {
  const ProgramRunner runner;
  auto job = runner.start({"ddprun", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c",
                           ": >" + (runner / "up") + "$RANK; exec sleep 300"});
  ASSERT_TRUE(appears(runner / "up0"));
  ASSERT_TRUE(appears(runner / "up1"));
  ASSERT_TRUE(job.wait_for("started 2 workers"));
  const long long waits_before = waits(job.pid()), time_before = cpu_time(job.pid());
  ::usleep(500'000);
  EXPECT_LT(waits(job.pid()) - waits_before, 50);
  EXPECT_LT(cpu_time(job.pid()) - time_before, 100'000'000);  // one that never sleeps
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().code, 143);
}

// Of another make of line ends: the terminal would jump to the line's start.
TEST(LastWord, InvisibleCharactersOfTheCommandAreShown) {
  const ProgramRunner runner;
  for (const std::string word : {"--nproc-per-node=2\r", "--log-level=info\r", "--standalone\r"}) {
    const auto run = runner.run({"ddprun", word, "train.py"});
    EXPECT_EQ(run.code, 2);
    EXPECT_THAT(run.err, AllOf(HasSubstr("\\r"), Not(HasSubstr("\r"))));
  }
  const auto missing = runner.run({"ddprun", "train\x1b[2J.py\r"});
  EXPECT_THAT(missing.err, AllOf(HasSubstr("train\\x1b[2J.py\\r"), Not(HasSubstr("\x1b"))));
}

}  // namespace
