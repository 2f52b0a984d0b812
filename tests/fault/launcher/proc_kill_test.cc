#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "launcher/process/kill_tree.h"
#include "tests/support/proc_support.h"

extern char** environ;

// The launcher or its workers are killed at any moment: nothing may stay behind.
namespace ddprun::launcher::testing {
namespace {

using std::chrono::milliseconds;

std::set<std::string> shared_memory() {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// Control groups that a launcher made in ours.
std::set<std::string> control_groups() {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& place : cgroup_places("/proc", "/sys/fs/cgroup", "")) {
    for (const auto& entry : std::filesystem::directory_iterator(place, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("ddprun-", 0) == 0) names.insert(name);
    }
  }
  return names;
}

// One launcher with a temporary folder of its own; all that it starts carries our tag.
class Job {
 public:
  Job(std::vector<std::string> command, std::vector<std::string> variables = {}) : tag_(make_job_token()) {
    tag_.replace(0, tag_.find('='), "DDPRUN_TEST_TAG");
    std::filesystem::create_directory(folder_ / "tmp");
    SpawnSpec spec;
    spec.executable = command.at(0);
    spec.arguments = std::move(command);
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (std::string(*entry).rfind("TMPDIR=", 0) != 0) spec.environment.emplace_back(*entry);
    }
    spec.environment.push_back(tag_);
    spec.environment.push_back("TMPDIR=" + (folder_ / "tmp"));
    spec.environment.push_back("T=" + folder_.path());
    for (auto& variable : variables) spec.environment.push_back(std::move(variable));
    const UniqueFd out(::open((folder_ / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    spec.stdout_fd = spec.stderr_fd = out.get();
    InheritedSignals inherited;
    // A shell that started us in the background ignores SIGINT, and so would the launcher then, as it should.
    for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) inherited.action[signal] = {};
    auto pid = spawn(spec, inherited);
    EXPECT_TRUE(pid) << pid.error().message();
    pid_ = pid.value_or(-1);
  }
  ~Job() {
    if (pid_ > 0) signal_process(pid_, SIGKILL);
    wait();
    for (const pid_t pid : left()) signal_process(pid, SIGKILL);
  }

  pid_t pid() const { return pid_; }
  std::string file(const std::string& name) const { return folder_ / name; }
  bool exists(const std::string& name) const { return ::access(file(name).c_str(), F_OK) == 0; }
  std::string output() const { return read_file(file("out")); }
  // Its wait status; -1 when it had been reaped or did not end.
  int wait() {
    if (pid_ <= 0) return status_;
    const bool ended = eventually([this] { return ::waitpid(pid_, &status_, WNOHANG) == pid_; });
    EXPECT_TRUE(ended) << "the launcher did not end\n" << output();
    pid_ = -1;
    return status_;
  }
  std::vector<pid_t> left() const {
    auto all = find_processes("/proc", {}, tag_);
    return all;
  }
  std::string describe_left() const {
    std::string text;
    for (const pid_t pid : left()) {
      text += std::to_string(pid) + ": " + read_file("/proc/" + std::to_string(pid) + "/cmdline") + "\n";
    }
    return text;
  }
  std::vector<std::string> temporary_files() const { return files_below(folder_ / "tmp"); }
  bool temporary_folder_empty() const { return std::filesystem::is_empty(folder_ / "tmp"); }

 private:
  TempFolder folder_;
  std::string tag_;
  pid_t pid_ = -1;
  int status_ = -1;
};

const std::string kMini = DDPRUN_BINARY_DIR "/tests/proc_mini_launcher";

TEST(KilledLauncher, WorkersHelpersAndFoldersGo) {
  // A worker that ignores everything, with helpers in its group, in a session of their own, and orphaned.
  const std::string script =
      "trap '' TERM INT HUP; sleep 600 & setsid sleep 600 & (setsid sh -c 'trap \"\" TERM; sleep 600' &) ; "
      ": >$TORCHELASTIC_ERROR_FILE; : >$T/up$RANK; while :; do sleep 0.1; done";
  Job job({kMini, "2", script});
  ASSERT_TRUE(eventually([&] { return job.exists("up0") && job.exists("up1"); }));
  ASSERT_GE(job.left().size(), 2u + 2 * 4);
  EXPECT_FALSE(job.temporary_folder_empty());
  signal_process(job.pid(), SIGKILL);
  job.wait();
  EXPECT_TRUE(eventually([&] { return job.left().empty(); }, std::chrono::seconds(20))) << job.describe_left();
  EXPECT_TRUE(eventually([&] { return job.temporary_folder_empty(); }, std::chrono::seconds(20)));
}

// A worker that has ended is forgotten: its id may be another's when the launcher is killed.
TEST(KilledLauncher, WhoGotAnEndedWorkersIdLives) {
  if (std::system("unshare --pid --fork --mount-proc sh -c 'echo 100 >/proc/sys/kernel/ns_last_pid' 2>/dev/null") !=
      0) {
    GTEST_SKIP() << "no pid namespace can be made here";
  }
  const std::string script =
      kMini +
      " 2 'if [ $RANK = 0 ]; then echo $$ >$T/ended; exit 0; fi; sleep 600' & launcher=$!; "
      "while [ ! -s $T/ended ] || kill -0 $(cat $T/ended) 2>/dev/null; do sleep 0.01; done; ended=$(cat $T/ended); "
      "sleep 0.1; "  // its end is dealt with
      "for try in 1 2 3 4 5; do echo $((ended - 1)) >/proc/sys/kernel/ns_last_pid; setsid sleep 600 & other=$!; "
      "[ $other = $ended ] && break; kill -KILL $other; done; [ $other = $ended ] || exit 3; "
      "kill -KILL $launcher; while pgrep -x ddprun-guard >/dev/null; do sleep 0.01; done; "
      "kill -0 $other || exit 4; kill -KILL $other";
  Job job({"/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "/bin/bash", "-c", script});
  const int status = job.wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 4) << "killed by the guard";
  EXPECT_EQ(WEXITSTATUS(status), 0) << job.output();
}

// Shared memory of Python, when nobody is left but the guard.
TEST(KilledLauncher, TrackersOfSharedMemoryCleanUpFirst) {
  if (std::system("python3 -c 'import multiprocessing.shared_memory' 2>/dev/null") != 0) {
    GTEST_SKIP() << "no python3 here";
  }
  Job job({kMini, "2",
           "exec python3 -c 'import os, time; from multiprocessing import shared_memory\n"
           "memory = shared_memory.SharedMemory(create=True, size=4096)\n"
           "path = os.environ[\"T\"] + \"/name\" + os.environ[\"RANK\"]\n"
           "if os.fork() == 0: time.sleep(600)\n"
           "open(path + \".tmp\", \"w\").write(memory.name.lstrip(\"/\"))\n"
           "os.rename(path + \".tmp\", path)\n"
           "time.sleep(600)'"});
  ASSERT_TRUE(eventually([&] { return job.exists("name0") && job.exists("name1"); })) << job.output();
  signal_process(job.pid(), SIGKILL);
  job.wait();
  EXPECT_TRUE(eventually([&] { return job.left().empty(); })) << job.describe_left();
  for (const char* name : {"name0", "name1"}) {
    const std::string memory = "/dev/shm/" + read_file(job.file(name));
    EXPECT_FALSE(std::filesystem::exists(memory)) << memory;
    std::filesystem::remove(memory);
  }
}

TEST(KilledGuard, IsStartedAgain) {
  Job job({kMini, "1", "setsid sleep 600 & : >$T/up; wait; sleep 600"});
  ASSERT_TRUE(eventually([&] { return job.exists("up"); }));
  const auto guards = [&] {
    auto children = find_children("/proc", job.pid());
    std::erase_if(children, [](pid_t pid) {
      const auto stat = read_process_stat("/proc", pid);
      return !stat || stat->is_dead() || stat->name != "ddprun-guard";
    });
    return children;
  };
  ASSERT_TRUE(eventually([&] { return guards().size() == 1; }));
  const pid_t first = guards().at(0);
  signal_process(first, SIGKILL);
  ASSERT_TRUE(eventually([&] { return guards().size() == 1 && guards().at(0) != first; }));
  signal_process(job.pid(), SIGKILL);
  job.wait();
  EXPECT_TRUE(eventually([&] { return job.left().empty(); })) << job.describe_left();
  EXPECT_TRUE(eventually([&] { return job.temporary_folder_empty(); }));
}

TEST(KilledLauncher, GuardHoldsNothingOfTheUsers) {
  // `ddprun | tee` must see the end of file when ddprun goes, although the guard is a process of its own.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  SpawnSpec spec;
  spec.executable = kMini;
  spec.arguments = {kMini, "1", "exec sleep 600"};
  for (char** entry = environ; *entry != nullptr; ++entry) spec.environment.emplace_back(*entry);
  spec.stdout_fd = ends[1];
  const InheritedSignals inherited;
  const auto pid = spawn(spec, inherited);
  ASSERT_TRUE(pid);
  ::close(ends[1]);
  ASSERT_TRUE(eventually([&] { return find_children("/proc", *pid).size() == 2; }));
  signal_process(*pid, SIGKILL);
  char byte;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
  ::waitpid(*pid, nullptr, 0);
}

TEST(KilledGuard, IsNoReasonToEnd) {
  Job job({kMini, "1", ": >$T/up; while [ ! -e $T/go ]; do sleep 0.01; done; sh -c 'setsid sleep 0.05 &'; exit 0"});
  ASSERT_TRUE(eventually([&] { return job.exists("up"); }));
  for (const pid_t pid : find_children("/proc", job.pid())) {
    if (read_file("/proc/" + std::to_string(pid) + "/comm") == "ddprun-guard\n") signal_process(pid, SIGKILL);
  }
  write_file(job.file("go"), "");
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_TRUE(job.left().empty()) << job.describe_left();
}

TEST(InterruptedLauncher, TwiceMeansNow) {
  Job job({kMini, "2", "trap '' TERM INT; : >$T/up$RANK; while :; do sleep 0.1; done"});
  ASSERT_TRUE(eventually([&] { return job.exists("up0") && job.exists("up1"); }));
  signal_process(job.pid(), SIGINT);
  signal_process(job.pid(), SIGTERM);
  const int status = job.wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_TRUE(job.left().empty()) << job.describe_left();
  EXPECT_TRUE(job.temporary_folder_empty());
}

TEST(Orphans, AreReapedWithoutTakingAWorkersStatus) {
  // Many short-lived orphans beside workers whose exit codes must arrive.
  Job job({kMini, "3",
           "i=0; while [ $i -lt 30 ]; do (setsid true &); i=$((i+1)); done; : >$T/made$RANK; "
           "while [ ! -e $T/go ]; do sleep 0.01; done; [ $RANK = 1 ] && exit 7; sleep 600"});
  ASSERT_TRUE(eventually([&] { return job.exists("made0") && job.exists("made1") && job.exists("made2"); }));
  // Not one zombie stays while the job runs.
  EXPECT_TRUE(eventually([&] {
    for (const pid_t pid : find_children("/proc", job.pid())) {
      const auto stat = read_process_stat("/proc", pid);
      if (stat && stat->state == 'Z') return false;
    }
    return true;
  }));
  write_file(job.file("go"), "");
  const int status = job.wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(job.left().empty()) << job.describe_left();
}

// As PID 1 of a container everything that is orphaned comes to the launcher.
TEST(PidOne, ReapsOrphansAndKeepsStatuses) {
  if (std::system("unshare --pid --fork --mount-proc true 2>/dev/null") != 0) {
    GTEST_SKIP() << "no pid namespace can be made here";
  }
  const std::string script =
      "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'sleep 0.01' &); done; sleep 0.05; "
      "while grep -q '^State:.Z' /proc/[0-9]*/status 2>/dev/null; do sleep 0.01; done; "
      "[ $(cut -d' ' -f4 /proc/$$/stat) = 1 ] || exit 3; exit $((7 + RANK))";
  Job job({"/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--kill-child", kMini, "1", script});
  const int status = job.wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7) << job.output();
  EXPECT_TRUE(job.left().empty()) << job.describe_left();
}

TEST(PidOne, TakesSigtermAsEveryLauncher) {
  if (std::system("unshare --pid --fork --mount-proc true 2>/dev/null") != 0) {
    GTEST_SKIP() << "no pid namespace can be made here";
  }
  Job job({"/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--kill-child", kMini, "2",
           "trap 'echo saved >$T/saved$RANK; exit 0' TERM; : >$T/up$RANK; while :; do sleep 0.01; done"});
  ASSERT_TRUE(eventually([&] { return job.exists("up0") && job.exists("up1"); }));
  const auto inside = find_children("/proc", job.pid());
  ASSERT_EQ(inside.size(), 1u);
  signal_process(inside[0], SIGTERM);
  const int status = job.wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_TRUE(job.exists("saved0") && job.exists("saved1"));
}

// DDPRUN_SOAK_COUNT starts (default 30), each killed at a random moment in a random way.
TEST(Soak, NothingStaysBehind) {
  const char* const wanted = ::getenv("DDPRUN_SOAK_COUNT");
  const int count = wanted != nullptr ? std::atoi(wanted) : 30;
  const char* const seed_text = ::getenv("DDPRUN_SOAK_SEED");
  const unsigned seed = seed_text != nullptr ? static_cast<unsigned>(std::atoi(seed_text)) : std::random_device{}();
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  const std::vector<std::string> scripts = {
      "exec sleep 600",
      "trap '' TERM INT; sleep 600 & wait; sleep 600",
      "setsid sleep 600 & (setsid sleep 600 &); exec sleep 600",
      "yes | head -c 300000; exec sleep 600",
      "trap 'exit 0' TERM INT; while :; do sleep 0.01; done",
      "sleep 0.0$((RANK+1)); exit $RANK",
      "exit 0",
  };
  // DDPRUN_SOAK_LAUNCHER=PATH: the whole launcher instead of its process side.
  const char* const launcher = ::getenv("DDPRUN_SOAK_LAUNCHER");
  const auto shared_before = shared_memory();
  for (int i = 0; i < count; ++i) {
    const std::string& script = scripts[random() % scripts.size()];
    const std::string workers = std::to_string(1 + random() % 4);
    std::vector<std::string> command{kMini, workers, script};
    if (launcher != nullptr) {
      command = {
          launcher, "--standalone", "--nproc-per-node=" + workers, "--shutdown-timeout=2", "--no-python", "/bin/sh",
          "-c",     script};
    }
    Job job(command);
    ASSERT_GT(job.pid(), 1);
    const pid_t launcher_pid = job.pid();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    const int signals[] = {SIGKILL, SIGTERM, SIGINT};
    const int signal = signals[random() % 3];
    const bool hit_worker = random() % 2 == 0;
    pid_t victim = job.pid();
    if (hit_worker) {
      auto children = find_children("/proc", job.pid());
      std::erase_if(children, [](pid_t pid) {  // the guard has a test of its own
        return read_file("/proc/" + std::to_string(pid) + "/comm") == "ddprun-guard\n";
      });
      if (!children.empty()) victim = children[random() % children.size()];
    }
    signal_process(victim, signal);
    SCOPED_TRACE("run " + std::to_string(i) + " seed " + std::to_string(seed) + ": " + workers + " x '" + script +
                 "', signal " + std::to_string(signal) + " to " + (victim == job.pid() ? "the launcher" : "a child"));
    if (victim != job.pid()) {
      // The job may live on (the signal was ignored): end it from outside.
      std::this_thread::sleep_for(milliseconds(random() % 30));
      signal_process(job.pid(), SIGTERM);
    }
    job.wait();
    EXPECT_TRUE(eventually([&] { return job.left().empty(); }, std::chrono::seconds(20))) << job.describe_left();
    EXPECT_TRUE(eventually([&] { return job.temporary_folder_empty(); }, std::chrono::seconds(20)));
    const std::string group = "ddprun-" + std::to_string(launcher_pid) + ".";
    EXPECT_TRUE(eventually(
        [&] {
          const auto groups = control_groups();
          return std::none_of(groups.begin(), groups.end(),
                              [&group](const std::string& name) { return name.rfind(group, 0) == 0; });
        },
        std::chrono::seconds(20)));
    if (HasFailure()) break;
  }
  // Other tests may run beside us: only what bears our name counts.
  for (const auto& name : shared_memory()) {
    EXPECT_TRUE(name.find("ddprun") == std::string::npos || shared_before.count(name) != 0) << name;
  }
}

}  // namespace
}  // namespace ddprun::launcher::testing
