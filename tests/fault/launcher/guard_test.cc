// The guard's clock: workers of a launcher that does not run die in time, those of one that does never.
#include "launcher/guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <thread>

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
    guard_->expect_workers();
    guard_->add_session(worker_);
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

}  // namespace
}  // namespace ddprun::launcher::testing
