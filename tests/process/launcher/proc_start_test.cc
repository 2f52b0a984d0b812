// Starting workers on hosts that lack something, and what a worker inherits.
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/process/kill_tree.h"
#include "tests/support/proc_deny.h"
#include "tests/support/proc_support.h"

namespace ddprun::launcher::testing {
namespace {

#define EXPECT_IN_CHILD(statement)                      \
  EXPECT_EXIT(                                          \
      {                                                 \
        ::alarm(60);                                    \
        statement;                                      \
        ::_exit(::testing::Test::HasFailure() ? 1 : 0); \
      },                                                \
      ::testing::ExitedWithCode(0), "")

void run_two_workers() {
  Harness harness;
  harness.options.recorder_bytes = 4096;
  auto group = harness.make();
  const auto started = group->start(harness.workers("sleep 0.05; ls /proc/self/fd | wc -l >$T/fds$RANK; exit 3", 2));
  ASSERT_TRUE(started) << started.error().message();
  const auto exits = finish(harness, *group);
  ASSERT_EQ(exits.size(), 2u);
  for (const auto& exit : exits) EXPECT_EQ(exit.status.code, 3);
  EXPECT_LE(std::stoi(read_file(harness.folder / "fds0")), 5);  // three streams, the recorder and the folder itself
}

TEST(StartOnOldKernels, WorksWithoutTheNewerCalls) {
  for (const int error : {ENOSYS, EPERM}) {
    for (const long call : {SYS_pidfd_open, SYS_pidfd_send_signal, SYS_close_range, SYS_memfd_create, SYS_clone3}) {
      if (call == SYS_clone3 && error == EPERM) continue;  // the C library itself cannot start a thread then
      SCOPED_TRACE("call " + std::to_string(call) + " error " + std::to_string(error));
      EXPECT_IN_CHILD(EXPECT_TRUE(deny_calls({call}, error)); run_two_workers());
    }
  }
}

TEST(StartOnOldKernels, SaysWhichCallIsMissing) {
  EXPECT_IN_CHILD({
    EXPECT_TRUE(deny_calls({SYS_clone, SYS_clone3}, EPERM));
    Harness harness;
    auto group = harness.make();
    const auto started = group->start(harness.workers("true", 1));
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code(), Errc::unsupported);
    EXPECT_NE(started.error().message().find("seccomp"), std::string::npos) << started.error().message();
    EXPECT_NE(started.error().message().find("clone"), std::string::npos) << started.error().message();
  });
}

TEST(StartAtALimit, NamesTheLimitOnProcesses) {
  EXPECT_IN_CHILD({
    EXPECT_TRUE(deny_calls({SYS_clone, SYS_clone3}, EAGAIN));
    Harness harness;
    auto group = harness.make();
    const auto started = group->start(harness.workers("true", 1));
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code(), Errc::exhausted);
    EXPECT_NE(started.error().message().find("ulimit -u"), std::string::npos) << started.error().message();
  });
}

// At every number of free descriptors: it starts, and then all that the workers print is shown, or it says why.
void start_with_ever_more_descriptors(int workers) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  bool started_once = false;
  for (rlim_t more = 0; more < 60 && !started_once; ++more) {
    Harness harness;
    auto group = harness.make();
    limit.rlim_cur = 40;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    std::vector<int> taken;
    for (int fd; (fd = ::dup(0)) >= 0;) taken.push_back(fd);
    for (rlim_t i = 0; i < more && !taken.empty(); ++i) {
      ::close(taken.back());
      taken.pop_back();
    }
    const auto started = group->start(harness.workers("echo here", workers));
    for (const int fd : taken) ::close(fd);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    if (started) {
      started_once = true;
    } else {
      EXPECT_EQ(started.error().code(), Errc::exhausted) << more << ": " << started.error().message();
      EXPECT_NE(started.error().message().find("ulimit -n"), std::string::npos) << started.error().message();
    }
    finish(harness, *group);
    if (started) {
      std::string all;
      for (int i = 0; i < workers; ++i) all += "here\n";
      EXPECT_EQ(harness.console_out(), all) << more;
    }
  }
  EXPECT_TRUE(started_once);
}

TEST(StartAtALimit, NamesTheLimitOnDescriptors) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined behaviour sanitizer looks at memory through a pipe of its own";
#endif
  EXPECT_IN_CHILD(start_with_ever_more_descriptors(1));
  EXPECT_IN_CHILD(start_with_ever_more_descriptors(2));
}

void signal_one_that_the_handle_says_has_gone() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    while (true) ::pause();
  }
  const auto stat = read_process_stat("/proc", pid);
  ASSERT_TRUE(stat);
  EXPECT_TRUE(deny_calls({SYS_pidfd_send_signal}, ESRCH));
  signal_if_same("/proc", pid, stat->start_time, SIGKILL);
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0);
  ::kill(pid, SIGKILL);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

TEST(StartOnOldKernels, AnIdIsTakenOnlyWhereThereAreNoHandles) {
  EXPECT_IN_CHILD(signal_one_that_the_handle_says_has_gone());
}

// The thread that moves the output: what it needs may be missing as well.
void start_without(long call) {
  Harness harness;
  auto group = harness.make();
  EXPECT_TRUE(deny_calls({call}, EMFILE));
  std::size_t descriptors = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto started = group->start(harness.workers("exit 0", 2, attempt));
    EXPECT_FALSE(started);
    if (started) return;
    EXPECT_EQ(started.error().code(), Errc::exhausted) << started.error().message();
    finish(harness, *group);
    if (attempt == 0) descriptors = open_descriptors();
    EXPECT_EQ(open_descriptors(), descriptors);
  }
}

TEST(StartAtALimit, TheOutputsThreadSaysWhatItLacks) {
  EXPECT_IN_CHILD(start_without(SYS_eventfd2));
  EXPECT_IN_CHILD(start_without(SYS_epoll_create1));
}

TEST(Inheritance, NothingIsBlockedInAWorker) {
  Harness harness;
  sigset_t block, before;
  ::sigemptyset(&block);
  ::sigaddset(&block, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &block, &before);
  auto group = harness.make();
  const auto started = group->start(harness.workers("grep -E 'SigBlk|SigIgn' /proc/self/status", 1));
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(started);
  finish(harness, *group);
  EXPECT_NE(harness.console_out().find("SigBlk:\t0000000000000000"), std::string::npos) << harness.console_out();
}

TEST(Inheritance, WhatSupervisorsIgnoreForThemselvesIsNotIgnoredInAWorker) {
  Harness harness;
  for (const int signal : {SIGPIPE, SIGXFSZ}) harness.options.inherited.action[signal].sa_handler = SIG_IGN;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("kill -PIPE $$; exit 0", 1)));
  const auto exits = finish(harness, *group);
  EXPECT_EQ(exits.at(0).status.signal, SIGPIPE);
}

TEST(Inheritance, TheLimitOnFileSizesIsTheWorkers) {
  EXPECT_IN_CHILD({
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 8192;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    Harness harness;  // its `inherited` is taken now
    harness.options.recorder_bytes = 1 << 20;
    auto group = harness.make();
    ASSERT_TRUE(group->start(harness.workers("ulimit -f >$T/limit; [ -n \"$DDPRUN_RECORDER_FD\" ]; exit $?", 1)));
    EXPECT_EQ(finish(harness, *group).at(0).status.code, 0);
    EXPECT_EQ(read_file(harness.folder / "limit"), "16\n");  // 512-byte blocks
    EXPECT_GE(group->group().recorder_fd(LocalRank(0)), 0);
  });
}

}  // namespace
}  // namespace ddprun::launcher::testing
