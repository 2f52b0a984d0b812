#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/surface_run.h"

// ddprun on a terminal, with somebody who types.
namespace {

using ddprun::testing::ProgramRunner;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// A program whose controlling terminal is a pty of ours.
class OnTerminal {
 public:
  explicit OnTerminal(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), std::string(DDPRUN_BINARY_DIR) + "/ddprun");
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::forkpty(&master_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::setenv("TERM", "dumb", 1);  // readline prints no escape sequences then
      for (const char* name : {"LOGLEVEL", "DDPRUN_LOG_LEVEL"}) ::unsetenv(name);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~OnTerminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(master_);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  // Reads on until `words` come after what was waited for last.
  bool wait_for(const std::string& words) {
    for (std::size_t at; (at = shown_.find(words, seen_)) == std::string::npos || !(seen_ = at + words.size(), true);) {
      if (!pump()) return false;
    }
    return true;
  }
  void type(const std::string& line) const {
    EXPECT_EQ(::write(master_, line.data(), line.size()), ssize_t(line.size()));
  }
  int wait() {
    while (pump()) {
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& shown() const { return shown_; }

 private:
  bool pump() {
    pollfd ready{master_, POLLIN, 0};
    if (::poll(&ready, 1, 60'000) <= 0) return false;
    char buffer[4096];
    const ssize_t n = ::read(master_, buffer, sizeof buffer);
    if (n <= 0) return false;  // EIO: nobody has it open any more
    shown_.append(buffer, static_cast<std::size_t>(n));
    return true;
  }
  pid_t pid_ = -1;
  int master_ = -1;
  std::string shown_;
  std::size_t seen_ = 0;
};

TEST(Terminal, AGoodJobHasNoWordsOfOurs) {
  OnTerminal job({"--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", "echo hello"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.shown(), "hello\r\nhello\r\n");
}

TEST(Terminal, SaysWhereLogsAreAndTheLevelIsTheUsersIfGiven) {
  const ProgramRunner runner;
  OnTerminal job(
      {"--standalone", "--log-dir=" + (runner / "logs"), "--tee=1", "--no-python", "sh", "-c", "echo hello"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.shown(), testing::StartsWith("[default0]:hello\r\nddprun: logs are in " + (runner / "logs/")));
  OnTerminal loud({"--standalone", "--log-level=info", "--no-python", "true"});
  EXPECT_EQ(loud.wait(), 0);
  EXPECT_THAT(loud.shown(), HasSubstr("the job ended well"));
}

class Debugger : public testing::TestWithParam<const char*> {};

TEST_P(Debugger, WorksOnAnyRank) {
  const ProgramRunner runner;
  const std::string script = runner.write("train.py",
                                          "import os\n"
                                          "rank = int(os.environ['RANK'])\n"
                                          "if rank == 1: breakpoint()\n"
                                          "answer = input('say: ') if rank == 1 else 'nothing'\n"
                                          "print('rank', rank, 'heard', answer)\n");
  OnTerminal job({"--standalone", "--nproc-per-node=2", GetParam(), script});
  ASSERT_TRUE(job.wait_for("(Pdb) ")) << job.shown();
  job.type("p 6 * 7\n");
  ASSERT_TRUE(job.wait_for("42")) << job.shown();
  job.type("c\n");
  ASSERT_TRUE(job.wait_for("say: ")) << job.shown();
  job.type("hello\n");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.shown(), HasSubstr("rank 1 heard hello"));
}

INSTANTIATE_TEST_SUITE_P(Output, Debugger, testing::Values("--tee=0", "--tee=3", "--stdin=1"));

TEST(Terminal, ADebuggerWithoutInputGetsTheRemedyAndItsWordsAreNotRepeated) {
  const ProgramRunner runner;
  const std::string script = runner.write("train.py", "def inner():\n  breakpoint()\n  return 1\ninner()\n");
  OnTerminal job({"--standalone", "--stdin=none", script});
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.shown(), HasSubstr("--stdin=0"));
  EXPECT_THAT(job.shown(), HasSubstr("The last lines of rank 0 are above."));
  EXPECT_THAT(job.shown(), Not(HasSubstr("  | ")));
}

TEST(Terminal, CtrlCEndsTheJob) {
  OnTerminal job({"--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", "echo up; exec sleep 300"});
  ASSERT_TRUE(job.wait_for("up"));
  ASSERT_TRUE(job.wait_for("up"));
  job.type("\x03");
  EXPECT_EQ(job.wait(), 130);
  EXPECT_THAT(job.shown(), HasSubstr("workers that run get it and have 30 s (once more: they are killed at once)"));
}

// Whoever types again too soon learns that it did not count; the one that counts is called by its own name.
TEST(Terminal, AnotherKeyWhileTheJobEndsKills) {
  OnTerminal job({"--standalone", "--shutdown-timeout=600", "--no-python", "sh", "-c",
                  "trap '' INT QUIT TERM; echo up; while :; do sleep 1; done"});
  ASSERT_TRUE(job.wait_for("up"));
  job.type("\x03");
  ASSERT_TRUE(job.wait_for("once more: they are killed at once")) << job.shown();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  do {
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << job.shown();
    ::usleep(20'000);
    job.type("\x1c");
    ASSERT_TRUE(job.wait_for("SIGQUIT ")) << job.shown();
    ASSERT_TRUE(job.wait_for("now")) << job.shown();
  } while (job.shown().find("SIGQUIT while the job ends: killing the workers now") == std::string::npos);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_THAT(job.shown(), Not(HasSubstr("again")));
}

}  // namespace
