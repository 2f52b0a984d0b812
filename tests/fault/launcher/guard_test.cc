// The guard's clock: workers of a launcher that does not run die in time, those of one that does never.
#include "launcher/process/guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <thread>

#include "launcher/process/kill_tree.h"
#include "tests/support/proc_deny.h"

namespace ddprun::launcher::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

bool eventually(const std::function<bool()>& condition) {
  const TimePoint limit = SteadyClock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (SteadyClock::now() > limit) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

// 'S' = sleeps, 'T' = stopped.
char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t end = text.rfind(')');
  return end + 2 < text.size() ? text[end + 2] : '?';
}

class GuardClock : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = Guard::start();
    ASSERT_TRUE(started) << started.error().message();
    guard_ = *started;
    worker_ = ::fork();
    if (worker_ == 0) {
      ::setsid();
      while (true) ::pause();
    }
    ASSERT_GT(worker_, 0);
    ASSERT_TRUE(eventually([&] { return ::getsid(worker_) == worker_; }));
    token_ = guard_->expect_workers();
    guard_->add_session(worker_);
  }
  // Another process in a session of its own, with `token` in its environment.
  static pid_t start_with(const std::string& token) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setsid();
      std::string entry = token;
      char* const environment[] = {entry.data(), nullptr};
      ::execle("/bin/sleep", "sleep", "600", nullptr, environment);
      ::_exit(127);
    }
    EXPECT_TRUE(eventually([&] { return find_token("/proc", pid, token).has_value(); }));
    return pid;
  }
  void TearDown() override {
    if (alive()) {
      ::kill(worker_, SIGKILL);
      ::waitpid(worker_, nullptr, 0);
    }
  }
  bool alive() {
    if (!dead_ && ::waitpid(worker_, nullptr, WNOHANG) == worker_) dead_ = true;
    return !dead_;
  }

  std::shared_ptr<Guard> guard_;
  std::string token_;
  pid_t worker_ = -1;
  bool dead_ = false;
};

TEST_F(GuardClock, WorkersDieWhenTheirTimeIsOverAndItIsNotPutOff) {
  guard_->kill_workers_at(SteadyClock::now() + hours(1));
  guard_->kill_workers_at(SteadyClock::now() + milliseconds(50));  // earlier than before
  EXPECT_TRUE(eventually([&] { return !alive(); }));
}

TEST_F(GuardClock, AGuardThatWasStoppedKillsNobodyForATimeThatWasPutOff) {
  ASSERT_EQ(::kill(guard_->pid(), SIGSTOP), 0);
  ASSERT_TRUE(eventually([&] { return state_of(guard_->pid()) == 'T'; }));
  const TimePoint soon = SteadyClock::now() + milliseconds(300);
  // More orders than a pipe holds: those after them cannot be told.
  for (int i = 0; i < 100'000; ++i) guard_->kill_workers_at(i % 2 == 0 ? soon : soon - milliseconds(1));
  guard_->kill_workers_at(SteadyClock::now() + hours(1));
  std::this_thread::sleep_until(soon + milliseconds(50));
  ASSERT_EQ(::kill(guard_->pid(), SIGCONT), 0);
  // An order that is waited for until it has been taken: everything before it has been, too.
  guard_->add_folder("/nonexistent/ddprun-guard-test");
  ASSERT_TRUE(eventually([&] { return state_of(guard_->pid()) == 'S'; }));
  EXPECT_TRUE(alive()) << "killed for a time that had been put off";
  guard_->kill_workers_at(SteadyClock::now());
  EXPECT_TRUE(eventually([&] { return !alive(); }));
}

// Everything was stopped for longer than the lease. The launcher runs first: it has stopped its workers and started
// others before the guard looks at the time that is over.
TEST_F(GuardClock, ATimeThatIsOverIsNotForTheNextAttempt) {
  ASSERT_EQ(::kill(guard_->pid(), SIGSTOP), 0);
  ASSERT_TRUE(eventually([&] { return state_of(guard_->pid()) == 'T'; }));
  guard_->kill_workers_at(SteadyClock::now());
  ::kill(worker_, SIGKILL);
  ASSERT_TRUE(eventually([&] { return !alive(); }));
  guard_->remove_session(worker_);
  guard_->no_workers_left();
  const std::string token = guard_->expect_workers();
  EXPECT_NE(token, token_);
  const pid_t next = start_with(token + ".0");
  guard_->add_session(next);
  ASSERT_EQ(::kill(guard_->pid(), SIGCONT), 0);
  guard_->add_folder("/nonexistent/ddprun-guard-test");
  ASSERT_TRUE(eventually([&] { return state_of(guard_->pid()) == 'S'; }));
  EXPECT_EQ(::waitpid(next, nullptr, WNOHANG), 0) << "the next attempt's worker was killed";
  guard_->kill_workers_at(SteadyClock::now());
  EXPECT_EQ(::waitpid(next, nullptr, 0), next);
}

// The same, but the guard is in the middle of its work when the next attempt starts.
TEST_F(GuardClock, WhileItKillsTheNextAttemptMayStart) {
  guard_->kill_workers_at(SteadyClock::now());
  ASSERT_TRUE(eventually([&] { return !alive(); }));
  guard_->remove_session(worker_);
  guard_->no_workers_left();
  const std::string token = guard_->expect_workers();
  const pid_t next = start_with(token + ".0");
  guard_->add_session(next);
  guard_->add_folder("/nonexistent/ddprun-guard-test");
  ASSERT_TRUE(eventually([&] { return state_of(guard_->pid()) == 'S'; }));
  std::this_thread::sleep_for(milliseconds(50));  // its rounds are 5 ms
  EXPECT_EQ(::waitpid(next, nullptr, WNOHANG), 0) << "the next attempt's worker was killed";
  ::kill(next, SIGKILL);
  ::waitpid(next, nullptr, 0);
}

TEST_F(GuardClock, OneThatIsKilledIsReplacedAndKnowsEverything) {
  const pid_t first = guard_->pid();
  guard_->kill_workers_at(SteadyClock::now() + hours(1));
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return state_of(first) == 'Z'; }));
  guard_->look_after();
  EXPECT_NE(guard_->pid(), first);
  EXPECT_TRUE(eventually([&] { return state_of(guard_->pid()) == 'S'; }));
  const pid_t stray = start_with(token_ + ".3");
  EXPECT_TRUE(alive());
  guard_.reset();
  EXPECT_TRUE(eventually([&] { return !alive(); }));
  EXPECT_EQ(::waitpid(stray, nullptr, 0), stray);
}

// One that somebody stopped and that reads nothing must not stop us: a pipe holds 64 KiB.
TEST_F(GuardClock, OneThatDoesNotReadIsReplaced) {
  const pid_t first = guard_->pid();
  ASSERT_EQ(::kill(first, SIGSTOP), 0);
  for (int i = 0; i < 20'000; ++i) guard_->remove_folder("/nonexistent/ddprun-guard-test");
  EXPECT_NE(guard_->pid(), first);
  guard_->kill_workers_at(SteadyClock::now());
  EXPECT_TRUE(eventually([&] { return !alive(); }));
}

// Whoever reads our standard output must see its end when we go, whatever the guard could not open.
TEST(GuardStreams, NothingOfTheUsersIsHeldEvenWithoutTheNullDevice) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0 || ::dup2(ends[1], 1) != 1 || ::dup2(ends[1], 2) != 2) ::_exit(2);
    if (!deny_calls({SYS_openat, SYS_open}, EMFILE)) ::_exit(3);
    const auto guard = Guard::start();
    if (!guard) ::_exit(4);
    for (const int fd : {1, 2, ends[1]}) ::close(fd);
    char byte;
    if (::read(ends[0], &byte, 1) != 0) ::_exit(5);
    ::_exit(::waitpid((*guard)->pid(), nullptr, WNOHANG) == 0 ? 0 : 6);  // it lives
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace ddprun::launcher::testing
