// What workers leave behind: time to go, a chance to clean up, and then nothing is left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <filesystem>
#include <thread>

#include "launcher/process/kill_tree.h"
#include "tests/support/proc_support.h"

namespace asio = boost::asio;

namespace ddprun::launcher::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Times that no test has to wait for: what happens before them happens by itself.
constexpr LeftoverTimes kPatient{.leave = seconds(600),
                                 .terminate = seconds(600),
                                 .asked = seconds(600),
                                 .tracker = seconds(600),
                                 .hurried_tracker = seconds(600),
                                 .dead = seconds(600)};
constexpr LeftoverTimes kQuick{.leave = milliseconds(20),
                               .terminate = milliseconds(20),
                               .asked = milliseconds(20),
                               .tracker = seconds(600),
                               .hurried_tracker = seconds(600),
                               .dead = seconds(600)};

pid_t pid_in(const std::string& path) {
  eventually([&] { return read_file(path).find('\n') != std::string::npos; });
  return std::atoi(read_file(path).c_str());
}

TEST(Leftovers, HelpersGetTimeToLeave) {
  Harness harness;
  harness.options.leftover_times = kPatient;
  auto group = harness.make();
  ASSERT_TRUE(group->start(
      harness.workers("setsid sh -c 'trap \"\" TERM; sleep 0.3; echo saved $RANK; : >$T/saved$RANK' & exit 0", 2)));
  finish(harness, *group);
  EXPECT_TRUE(std::filesystem::exists(harness.folder / "saved0"));
  EXPECT_TRUE(std::filesystem::exists(harness.folder / "saved1"));
  // Their output is still the job's.
  EXPECT_NE(harness.console_out().find("saved 0\n"), std::string::npos);
}

TEST(Leftovers, ThenTheyGetSigterm) {
  Harness harness;
  harness.options.leftover_times = kPatient;
  harness.options.leftover_times.leave = milliseconds(20);
  auto group = harness.make();
  ASSERT_TRUE(
      group->start(harness.workers("(trap 'echo term >$T/term; exit' TERM; : >$T/a; while :; do sleep 0.01; done) & "
                                   "while [ ! -e $T/a ]; do sleep 0.01; done",
                                   1)));
  finish(harness, *group);
  EXPECT_EQ(read_file(harness.folder / "term"), "term\n");
}

TEST(Leftovers, ThenSigkill) {
  Harness harness;
  harness.options.leftover_times = kQuick;
  auto group = harness.make();
  ASSERT_TRUE(
      group->start(harness.workers("(trap '' TERM; sh -c 'echo $PPID' >$T/pid; while :; do sleep 0.01; done) & "
                                   "while [ ! -s $T/pid ]; do sleep 0.01; done",
                                   1)));
  finish(harness, *group);
  EXPECT_TRUE(is_dead(pid_in(harness.folder / "pid")));
}

TEST(Leftovers, WaitLetsThemFinish) {
  Harness harness;
  harness.options.leftovers = Leftovers::wait;
  harness.options.leftover_times = kQuick;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("setsid sh -c 'sleep 0.3; : >$T/uploaded' & exit 0", 1)));
  finish(harness, *group);
  EXPECT_TRUE(std::filesystem::exists(harness.folder / "uploaded"));
}

TEST(Leftovers, WaitEndsWhenSomebodyIsImpatient) {
  Harness harness;
  harness.options.leftovers = Leftovers::wait;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("setsid sh -c 'echo $$ >$T/pid; exec sleep 600' & exit 0", 1)));
  ASSERT_TRUE(eventually([&] { return !read_file(harness.folder / "pid").empty(); }));
  group->group().drain();
  group->group().hurry();
  finish(harness, *group);
  EXPECT_TRUE(is_dead(pid_in(harness.folder / "pid")));
}

TEST(Leftovers, KeepLeavesThemRunning) {
  Harness harness;
  harness.options.leftovers = Leftovers::keep;
  auto group = harness.make();
  ASSERT_TRUE(
      group->start(harness.workers("setsid sh -c 'echo $$ >$T/pid; exec sleep 600' & "
                                   "while [ ! -s $T/pid ]; do sleep 0.01; done",
                                   1)));
  finish(harness, *group);
  group.reset();
  const pid_t pid = pid_in(harness.folder / "pid");
  EXPECT_FALSE(is_dead(pid));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// An ordinary user has no control group, and this helper shows neither token nor session: it is our descendant.
TEST(Leftovers, WhoHidesIsFoundWithoutAControlGroup) {
  Harness harness;
  harness.options.use_cgroup = false;
  harness.options.leftover_times = kQuick;
  auto group = harness.make();
  ASSERT_TRUE(
      group->start(harness.workers("setsid env -i /bin/sh -c 'echo $$ >'$T'/pid; exec sleep 600' & "
                                   "while [ ! -s $T/pid ]; do sleep 0.01; done",
                                   1)));
  finish(harness, *group);
  EXPECT_TRUE(is_dead(pid_in(harness.folder / "pid")));
}

TEST(KillTree, AnIdThatIsAnotherProcesssIsNotSignalled) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    while (true) ::pause();
  }
  const auto stat = read_process_stat("/proc", pid);
  ASSERT_TRUE(stat);
  EXPECT_GT(stat->start_time, 0u);
  signal_if_same("/proc", pid, stat->start_time - 1, SIGKILL);
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0);
  signal_if_same("/proc", pid, stat->start_time, SIGKILL);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

// `sh -c 'something & exec ddprun ...'`: a child of ours that no worker has started.
TEST(Leftovers, ChildrenThatWereThereBeforeAreNobodysBusiness) {
  const pid_t before = ::fork();
  if (before == 0) {
    ::execl("/bin/sleep", "sleep", "600", nullptr);
    ::_exit(127);
  }
  Harness harness;
  harness.options.leftover_times = kQuick;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("setsid sleep 600 & echo $! >$T/pid", 1)));
  finish(harness, *group);
  group.reset();
  EXPECT_TRUE(is_dead(pid_in(harness.folder / "pid")));
  EXPECT_FALSE(is_dead(before));
  ::kill(before, SIGKILL);
  ::waitpid(before, nullptr, 0);
}

// Python's shared memory, whose tracker removes it when all who hold its pipe are gone; but only if it lives then.
class SharedMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(SharedMemory, IsRemovedByItsTracker) {
  if (std::system("python3 -c 'import multiprocessing.shared_memory' 2>/dev/null") != 0) {
    GTEST_SKIP() << "no python3 here";
  }
  Harness harness;
  harness.options.leftover_times.leave = milliseconds(100);
  harness.options.leftover_times.tracker = seconds(60);
  write_file(harness.folder / "worker.py",
             "import os, signal, sys, time\n"
             "from multiprocessing import shared_memory\n"
             "memory = shared_memory.SharedMemory(create=True, size=1 << 20)\n"
             "path = os.environ['T'] + '/name' + os.environ['RANK']\n"
             "open(path + '.tmp', 'w').write(memory.name.lstrip('/') + '\\n')\n"
             "if os.fork() == 0:\n"
             "    time.sleep(600)  # a data loader that holds the tracker's pipe\n"
             "os.rename(path + '.tmp', path)\n"
             "how = sys.argv[1]\n"
             "if how == 'exits': os._exit(0)\n"
             "if how == 'crashes': os.kill(os.getpid(), signal.SIGSEGV)\n"
             "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
             "while True: time.sleep(600)\n");
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers(std::string("exec python3 $T/worker.py ") + GetParam(), 2)));
  for (const char* name : {"name0", "name1"}) {
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(harness.folder / name); })) << harness.console_err();
  }
  if (std::string(GetParam()) == "is killed") {
    group->group().kill(LocalRank(0));
    group->group().kill(LocalRank(1));
  }
  if (std::string(GetParam()) == "goes with us") {
    group.reset();
  } else {
    finish(harness, *group);
  }
  for (const char* name : {"name0", "name1"}) {
    std::string memory = read_file(harness.folder / name);
    memory.pop_back();
    EXPECT_FALSE(std::filesystem::exists("/dev/shm/" + memory)) << name;
    std::filesystem::remove("/dev/shm/" + memory);
  }
}

INSTANTIATE_TEST_SUITE_P(Leftovers, SharedMemory, ::testing::Values("exits", "crashes", "is killed", "goes with us"),
                         [](const auto& how) {
                           std::string name = how.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

// A process that traces another and does not reap it: the dead stay zombies that nobody can take. Made before the
// group, for which it is a child that was there before.
class Tracer {
 public:
  Tracer() {
    EXPECT_EQ(::pipe2(to_, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(from_, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      pid_t traced = 0;
      if (::read(to_[0], &traced, sizeof traced) != sizeof traced) ::_exit(1);
      const char done = ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0 ? 'y' : 'n';
      if (::write(from_[1], &done, 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
  }
  ~Tracer() {
    end();
    for (const int fd : {to_[0], to_[1], from_[0], from_[1]}) ::close(fd);
  }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  bool seize(pid_t traced) {
    char done = 'n';
    EXPECT_EQ(::write(to_[1], &traced, sizeof traced), static_cast<ssize_t>(sizeof traced));
    EXPECT_EQ(::read(from_[0], &done, 1), 1);
    return done == 'y';
  }

 private:
  int to_[2] = {-1, -1}, from_[2] = {-1, -1};
  pid_t pid_ = -1;
};

// How long the event loop was away at most, in naps of 5 ms that another thread took meanwhile: on a busy host both are
// late.
class Pulse {
 public:
  explicit Pulse(asio::io_context& io) : timer_(io) {
    beat();
    sleeper_ = std::thread([this] {
      for (; !done_; ++naps_) std::this_thread::sleep_for(milliseconds(5));
    });
  }
  ~Pulse() {
    done_ = true;
    sleeper_.join();
  }
  int longest() const { return longest_; }

 private:
  void beat() {
    last_ = naps_;
    timer_.expires_after(milliseconds(5));
    timer_.async_wait([this](const boost::system::error_code& ec) {
      if (ec) return;
      longest_ = std::max(longest_, naps_ - last_);
      beat();
    });
  }
  asio::steady_timer timer_;
  std::atomic<int> naps_ = 0;
  std::atomic<bool> done_ = false;
  std::thread sleeper_;
  int last_ = 0, longest_ = 0;
};

TEST(Leftovers, AZombieThatItsTracerKeepsBlocksNobody) {
  Harness harness;
  Tracer tracer;
  auto group = harness.make();
  ASSERT_TRUE(
      group->start(harness.workers("setsid sh -c 'echo $$ >$T/pid; exec sleep 600' & "
                                   "while [ ! -e $T/go ]; do sleep 0.01; done",
                                   1)));
  if (!tracer.seize(pid_in(harness.folder / "pid"))) GTEST_SKIP() << "nothing may be traced here";
  {
    Pulse pulse(harness.io);
    write_file(harness.folder / "go", "");
    group->group().kill(LocalRank(0));
    finish(harness, *group);
    EXPECT_LT(pulse.longest(), 100);
  }
}

TEST(Leftovers, AWorkerThatItsTracerKeepsHasEnded) {
  Harness harness;
  Tracer tracer;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("echo $$ >$T/pid; exec sleep 600", 1)));
  if (!tracer.seize(pid_in(harness.folder / "pid"))) GTEST_SKIP() << "nothing may be traced here";
  ::kill(group->group().pids().at(0), SIGKILL);
  const auto exits = finish(harness, *group);
  ASSERT_EQ(exits.size(), 1u);
  EXPECT_EQ(exits[0].status.signal, SIGKILL);
}

// A zombie that its tracer keeps and that /proc does not show is what a process is that hangs in the kernel.
TEST(Leftovers, AfterAWorkerThatIsStuckAStartIsRefusedAndDrained) {
  Harness harness;
  harness.options.use_cgroup = false;
  harness.options.proc_root = harness.folder.path();
  harness.options.kill_limit = seconds(0);
  Tracer tracer;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("exec sleep 600", 1)));
  if (!tracer.seize(group->group().pids().at(0))) GTEST_SKIP() << "nothing may be traced here";
  group->group().kill(LocalRank(0));
  const auto exits = finish(harness, *group);
  ASSERT_EQ(exits.size(), 1u);
  EXPECT_TRUE(exits[0].left_behind);
  const auto again = group->start(harness.workers("exit 0", 1));
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message().find("stuck in the kernel"), std::string::npos) << again.error().message();
  EXPECT_TRUE(finish(harness, *group).empty());
  tracer.end();
  EXPECT_EQ(::waitpid(exits[0].pid, nullptr, 0), exits[0].pid);
}

asio::awaitable<void> first_exit(PatientGroup& group) { co_await group.next_exit(); }

TEST(Leftovers, AStartDoesNotWaitForADrainThatNobodyHurried) {
  Harness harness;
  harness.options.leftovers = Leftovers::wait;
  harness.options.use_cgroup = false;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("setsid sleep 600 & echo $! >$T/pid", 1)));
  group->group().drain();
  run(harness.io, first_exit(*group));
  ASSERT_TRUE(group->start(harness.workers("echo second; exit 4", 1)));
  EXPECT_TRUE(is_dead(pid_in(harness.folder / "pid")));
  const auto exits = finish(harness, *group);
  ASSERT_EQ(exits.size(), 1u);
  EXPECT_EQ(exits[0].status.code, 4);
  EXPECT_EQ(harness.console_out(), "second\n");
}

}  // namespace
}  // namespace ddprun::launcher::testing
