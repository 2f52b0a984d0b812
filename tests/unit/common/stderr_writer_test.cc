#include "common/stderr_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "common/unique_fd.h"
#include "tests/support/proc_deny.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::EndsWith;
using ::testing::StartsWith;

struct Ends {
  UniqueFd ours, theirs;
};

Ends make_pipe() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  return Ends{UniqueFd(fds[1]), UniqueFd(fds[0])};
}

Ends make_socket() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return Ends{UniqueFd(fds[1]), UniqueFd(fds[0])};
}

std::string lost(std::uint64_t lines) { return "lost " + std::to_string(lines) + "\n"; }

std::string line(int i) { return std::to_string(i) + std::string(90, 'x') + "\n"; }

// Reads until the text ends with `end`.
std::string read_until(int fd, const std::string& end) {
  std::string text;
  char buffer[4096];
  while (!text.ends_with(end)) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  return text;
}

class StderrWriterOn : public ::testing::TestWithParam<const char*> {
 protected:
  static Ends make() { return std::string(GetParam()) == "pipe" ? make_pipe() : make_socket(); }
};

// Without the thread this hangs: 200 lines are more than a pipe takes.
TEST_P(StderrWriterOn, AReaderThatSleepsHoldsNobodyUpAndGetsAllInOrderLater) {
  Ends ends = make();
  StderrWriter writer(ends.ours.get(), lost);
  std::string all;
  for (int i = 0; i < 3000; ++i) {
    writer.write(line(i));
    all += line(i);
  }
  EXPECT_FALSE(writer.flush(seconds(20), milliseconds(50)));
  EXPECT_EQ(::fcntl(ends.ours.get(), F_GETFL) & O_NONBLOCK, 0);  // it is others' too
  std::string got;
  std::thread reader([&] { got = read_until(ends.theirs.get(), line(2999)); });
  EXPECT_TRUE(writer.flush(seconds(60), seconds(60)));
  reader.join();
  EXPECT_EQ(got, all);
  writer.write("direct again\n");
  EXPECT_EQ(read_until(ends.theirs.get(), "\n"), "direct again\n");
}

TEST_P(StderrWriterOn, WhatFindsNoRoomIsCountedAndTheLastWordHasRoom) {
  Ends ends = make();
  StderrWriter writer(ends.ours.get(), lost);
  constexpr int kLines = 20'000;  // 1.8 MB
  for (int i = 0; i < kLines; ++i) writer.write(line(i));
  writer.write("the last word\n", true);
  std::string got;
  std::thread reader([&] {
    while (got.find("lost ") == std::string::npos) {
      const std::string piece = read_until(ends.theirs.get(), "\n");
      if (piece.empty()) break;
      got += piece;
    }
  });
  EXPECT_TRUE(writer.flush(seconds(60), seconds(60)));
  reader.join();
  const auto count = [&got](const char* what) {
    std::size_t n = 0;
    for (auto at = got.find(what); at != std::string::npos; at = got.find(what, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("the last word\n"), 1u);
  const std::size_t shown = count("x\n");
  EXPECT_LT(shown, static_cast<std::size_t>(kLines));
  EXPECT_LT(got.size(), 1'500'000u);
  EXPECT_THAT(got, EndsWith("lost " + std::to_string(kLines - shown) + "\n"));
  EXPECT_THAT(got, StartsWith(line(0)));
}

INSTANTIATE_TEST_SUITE_P(All, StderrWriterOn, ::testing::Values("pipe", "socket"),
                         [](const auto& test) { return std::string(test.param); });

int exit_code_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Another user's pipe cannot be opened again: then all goes by the thread.
TEST(StderrWriter, APipeOfAnotherUserHoldsNobodyUpEither) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  Ends ends = make_pipe();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    ends.theirs.reset();
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
    const std::string self = "/proc/self/fd/" + std::to_string(ends.ours.get());
    if (::open(self.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC) >= 0) ::_exit(3);
    StderrWriter writer(ends.ours.get(), lost);
    for (int i = 0; i < 2000; ++i) writer.write(line(i));
    ::_exit(writer.flush(seconds(60), seconds(60)) ? 0 : 4);
  }
  ends.ours.reset();
  const std::string got = read_until(ends.theirs.get(), line(1999));
  EXPECT_EQ(exit_code_of(pid), 0);
  EXPECT_TRUE(got.starts_with(line(0)));
  EXPECT_TRUE(got.ends_with(line(1999)));
}

// Where no more threads may be made (ulimit -u) the last words still come.
TEST(StderrWriter, WithoutAThreadTheEndWritesItself) {
  Ends ends = make_pipe();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    ends.theirs.reset();
    if (!launcher::testing::deny_calls({SYS_clone, SYS_clone3}, EAGAIN)) ::_exit(2);
    StderrWriter writer(ends.ours.get(), lost);
    for (int i = 0; i < 2000; ++i) writer.write(line(i));
    ::_exit(writer.flush(seconds(60), seconds(60)) ? 0 : 4);
  }
  ends.ours.reset();
  std::string got = read_until(ends.theirs.get(), line(1999));
  EXPECT_EQ(exit_code_of(pid), 0);
  EXPECT_TRUE(got.starts_with(line(0)));
  EXPECT_TRUE(got.ends_with(line(1999)));
}

TEST(StderrWriter, WithoutAThreadAReaderThatSleepsDoesNotHoldUpTheEnd) {
  Ends ends = make_pipe();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    if (!launcher::testing::deny_calls({SYS_clone, SYS_clone3}, EAGAIN)) ::_exit(2);
    StderrWriter writer(ends.ours.get(), lost);
    for (int i = 0; i < 2000; ++i) writer.write(line(i));
    ::_exit(writer.flush(seconds(600), milliseconds(20)) ? 4 : 0);
  }
  EXPECT_EQ(exit_code_of(pid), 0);
}

// The thread is the parent's, and perhaps its lock too.
TEST(StderrWriter, AForkedChildDoesNotWaitForItsParentsThread) {
  Ends ends = make_pipe();
  StderrWriter writer(ends.ours.get(), lost);
  for (int i = 0; i < 3000; ++i) writer.write(line(i));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    writer.write("of the child\n");
    ::_exit(writer.flush(seconds(60), seconds(60)) ? 0 : 1);
  }
  EXPECT_EQ(exit_code_of(pid), 0);
  ends.theirs.reset();
  EXPECT_TRUE(writer.flush(seconds(60), seconds(60)));
}

TEST(StderrWriter, AReaderThatIsGoneIsNoReasonToWait) {
  Ends ends = make_pipe();
  StderrWriter writer(ends.ours.get(), lost);
  for (int i = 0; i < 3000; ++i) writer.write(line(i));
  ends.theirs.reset();
  EXPECT_TRUE(writer.flush(seconds(60), seconds(60)));
  writer.write("nobody hears it\n");
}

TEST(StderrWriter, AConsoleThatTricklesDoesNotHoldUpTheEnd) {
  Ends ends = make_pipe();
  StderrWriter writer(ends.ours.get(), lost);
  for (int i = 0; i < 3000; ++i) writer.write(line(i));
  std::atomic<bool> begun = false, done = false;
  std::thread reader([&] {
    char bytes[4096];
    while (!begun) std::this_thread::yield();
    while (!done && ::read(ends.theirs.get(), bytes, sizeof bytes) > 0) std::this_thread::sleep_for(milliseconds(50));
    ends.theirs.reset();
  });
  begun = true;
  EXPECT_FALSE(writer.flush(milliseconds(100), seconds(60)));  // it does move, but time is over
  done = true;
  reader.join();
  EXPECT_TRUE(writer.flush(seconds(60), seconds(60)));
}

}  // namespace
}  // namespace ddprun
