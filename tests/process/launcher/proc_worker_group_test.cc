#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "common/task_group.h"
#include "launcher/process/kill_tree.h"
#include "tests/support/proc_support.h"

namespace asio = boost::asio;

namespace ddprun::launcher::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::set<std::string> cgroup_folders() {
  std::set<std::string> names;
  std::error_code ignored;
  for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("ddprun-" + std::to_string(::getpid()) + ".", 0) == 0) names.insert(name);
    }
  }
  return names;
}

TEST(WorkerGroup, PassesOutputThroughAndReportsExits) {
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("echo out $RANK; echo err $RANK >&2; exit $RANK", 3)));
  EXPECT_TRUE(group->group().running());
  const auto exits = finish(harness, *group);
  ASSERT_EQ(exits.size(), 3u);
  for (const auto& exit : exits) {
    EXPECT_EQ(exit.status.code, exit.local_rank.value);
    EXPECT_FALSE(exit.stopped_by_us);
    EXPECT_EQ(group->group().evidence(exit.local_rank).last_lines,
              std::vector<std::string>{"err " + std::to_string(exit.local_rank.value)});
  }
  EXPECT_FALSE(group->group().running());
  const std::string out = harness.console_out();
  for (const char* line : {"out 0\n", "out 1\n", "out 2\n"}) EXPECT_NE(out.find(line), std::string::npos) << out;
  EXPECT_EQ(out.size(), 18u);
  EXPECT_EQ(harness.console_err().size(), 18u);
}

TEST(WorkerGroup, BytesOfOneWorkerAreUnchanged) {
  Harness harness;
  const std::string script = R"(printf 'caf\351 \377\376 nul\000nul \033[31mred\r\nlast'; printf '\rbar' >&2)";
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers(script, 1)));
  finish(harness, *group);
  EXPECT_EQ(harness.console_out(), std::string("caf\351 \377\376 nul\0nul \033[31mred\r\nlast", 30));
  EXPECT_EQ(harness.console_err(), "\rbar");
}

TEST(ChildProcess, AbandonedIsNeitherKilledNorReaped) {
  asio::io_context io;
  SpawnSpec spec;
  spec.executable = "/bin/sleep";
  spec.arguments = {"sleep", "600"};
  const InheritedSignals inherited;
  const auto pid = spawn(spec, inherited);
  ASSERT_TRUE(pid);
  bool ended = false;
  {
    auto child = ChildProcess::adopt(io.get_executor(), *pid);
    ASSERT_TRUE(child);
    (*child)->when_ended([&ended] { ended = true; });
    (*child)->abandon();
  }
  EXPECT_EQ(::waitpid(*pid, nullptr, WNOHANG), 0);  // still our child, and alive
  ::kill(*pid, SIGKILL);
  EXPECT_EQ(::waitpid(*pid, nullptr, 0), *pid);
  io.run();
  EXPECT_FALSE(ended);
}

TEST(WorkerGroup, NamesTheStepThatFailed) {
  Harness harness;
  auto group = harness.make();
  auto specs = harness.workers("sleep 600", 2);
  specs[1].process.executable = harness.folder / "missing";
  const auto started = group->start(std::move(specs));
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code(), Errc::not_found);
  EXPECT_NE(started.error().message().find("missing: No such file"), std::string::npos) << started.error().message();
  EXPECT_FALSE(group->group().running());
  finish(harness, *group);
  const std::size_t after_one = open_descriptors();

  specs = harness.workers("true", 1);
  specs[0].process.executable = harness.folder.path();
  const auto denied = group->start(std::move(specs));
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code(), Errc::not_executable);
  EXPECT_NE(denied.error().message().find("Permission denied"), std::string::npos) << denied.error().message();
  finish(harness, *group);
  EXPECT_EQ(open_descriptors(), after_one);
}

TEST(WorkerGroup, ReportsTheSignal) {
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("kill -SEGV $$", 1)));
  const auto exits = finish(harness, *group);
  ASSERT_EQ(exits.size(), 1u);
  EXPECT_EQ(exits[0].status.signal, SIGSEGV);
  EXPECT_EQ(exits[0].status.shell_code(), 128 + SIGSEGV);
  EXPECT_NE(exits[0].status.to_string().find("SIGSEGV"), std::string::npos);
}

asio::awaitable<void> stop_when_ready(PatientGroup& group, const std::string& ready, int count, milliseconds patience) {
  for (int i = 0; i < count; ++i) {
    EXPECT_TRUE(eventually([&] { return ::access((ready + std::to_string(i)).c_str(), F_OK) == 0; }));
  }
  co_await group.stop(SIGTERM, patience);
}

TEST(WorkerGroup, StopGivesTimeToSave) {
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(
      harness.workers("n=0; trap 'n=$((n+1))' TERM; : >$T/up$RANK; while [ $n = 0 ]; do sleep 0.02; done; sleep 0.3; "
                      "echo \"saved after $n\" >$T/saved$RANK",
                      2)));
  run(harness.io, stop_when_ready(*group, harness.folder / "up", 2, seconds(30)));
  EXPECT_FALSE(group->group().running());
  for (const auto& exit : group->group().exits()) {
    EXPECT_TRUE(exit.stopped_by_us);
    EXPECT_TRUE(exit.status.success()) << exit.status.to_string();
  }
  EXPECT_EQ(read_file(harness.folder / "saved0"), "saved after 1\n");
  EXPECT_EQ(read_file(harness.folder / "saved1"), "saved after 1\n");
}

TEST(WorkerGroup, StopKillsWhoDoesNotGoInTime) {
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("trap '' TERM; : >$T/up$RANK; while :; do sleep 0.1; done", 2)));
  const auto begin = SteadyClock::now();
  run(harness.io, stop_when_ready(*group, harness.folder / "up", 2, milliseconds(300)));
  EXPECT_GE(SteadyClock::now() - begin, milliseconds(300));
  ASSERT_EQ(group->group().exits().size(), 2u);
  for (const auto& exit : group->group().exits()) EXPECT_EQ(exit.status.signal, SIGKILL);
}

asio::awaitable<void> stop_twice(PatientGroup& group, Harness& harness) {
  EXPECT_TRUE(eventually([&] { return ::access((harness.folder / "up0").c_str(), F_OK) == 0; }));
  bool first_done = false;
  auto first = [&]() -> asio::awaitable<void> {
    co_await group.stop(SIGINT, seconds(600));
    first_done = true;
  };
  TaskGroup tasks(harness.io.get_executor());
  tasks.spawn(first());
  co_await group.stop(SIGTERM, milliseconds(100));
  co_await tasks.join();
  EXPECT_TRUE(first_done);
}

TEST(WorkerGroup, SecondStopShortensTheFirst) {
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("trap '' TERM INT; : >$T/up$RANK; while :; do sleep 0.1; done", 1)));
  run(harness.io, stop_twice(*group, harness));
  EXPECT_EQ(group->group().exits().at(0).status.signal, SIGKILL);
}

TEST(WorkerGroup, HelpersEndWithTheirWorker) {
  Harness harness;
  auto group = harness.make();
  // One in its process group, one in a session of its own, one whose parent has gone.
  ASSERT_TRUE(
      group->start(harness.workers("sleep 600 & echo $! >$T/a$RANK; setsid sleep 600 & echo $! >$T/b$RANK; "
                                   "(setsid sleep 600 & echo $! >$T/c$RANK); exit 4",
                                   2)));
  const auto exits = finish(harness, *group);
  EXPECT_EQ(exits.size(), 2u);
  for (const char* name : {"a0", "a1", "b0", "b1", "c0", "c1"}) {
    const int pid = std::stoi(read_file(harness.folder / name));
    EXPECT_TRUE(is_dead(pid)) << name << " " << pid;
  }
}

// A worker with a helper in its process group, as a data loader is; both note each SIGUSR1 and SIGTERM.
const char* const kWithLoader =
    "note() { echo $1 >>$T/$2; }; "
    "(trap 'note usr1 loader' USR1; trap 'note term loader; exit' TERM; : >$T/up_loader; "
    "while :; do sleep 0.01; done) & "
    "trap 'note usr1 worker' USR1; trap 'note term worker; : >$T/done' TERM; : >$T/up_worker; "
    "while [ ! -e $T/done ]; do sleep 0.01; done; kill $!; wait";

asio::awaitable<void> forward_and_stop(PatientGroup& group, const Harness& harness, bool loader_too) {
  const auto has = [&](const char* file, const char* text) {
    return read_file(harness.folder / file).find(text) != std::string::npos;
  };
  EXPECT_TRUE(eventually([&] {
    return ::access((harness.folder / "up_loader").c_str(), F_OK) == 0 &&
           ::access((harness.folder / "up_worker").c_str(), F_OK) == 0;
  }));
  group.group().forward(SIGUSR1);
  EXPECT_TRUE(eventually([&] { return has("worker", "usr1") && (!loader_too || has("loader", "usr1")); }));
  co_await group.stop(SIGTERM, seconds(600));
  EXPECT_TRUE(has("worker", "term"));
  EXPECT_EQ(has("loader", "usr1"), loader_too);
}

TEST(WorkerGroup, SignalsGoToTheWorkerNotToItsLoaders) {
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers(kWithLoader, 1)));
  run(harness.io, forward_and_stop(*group, harness, false));
}

TEST(WorkerGroup, SignalsGoToTheWholeGroupWhereThatIsWanted) {
  Harness harness;
  harness.options.signal_scope = SignalScope::group;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers(kWithLoader, 1)));
  run(harness.io, forward_and_stop(*group, harness, true));
}

// A shell without a trap dies of the signal that the program behind it should hear.
TEST(WorkerGroup, TheProgramBehindAWrapperHearsTheStopSignalAndCanSave) {
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers(
      "sh -c 'trap \"sleep 0.3; : >$T/saved; exit\" TERM; : >$T/up0; while :; do sleep 0.01; done'; exit 1", 1)));
  run(harness.io, stop_when_ready(*group, harness.folder / "up", 1, seconds(600)));
  EXPECT_EQ(group->group().exits().at(0).status.signal, SIGTERM);
  EXPECT_EQ(::access((harness.folder / "saved").c_str(), F_OK), 0);
}

TEST(WorkerGroup, AStoppedWorkerHearsTheStopSignal) {
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("trap 'exit 5' TERM; : >$T/up0; while :; do sleep 0.01; done", 1)));
  ASSERT_TRUE(eventually([&] { return ::access((harness.folder / "up0").c_str(), F_OK) == 0; }));
  const pid_t pid = group->group().pids().at(0);
  ::kill(pid, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return read_process_stat("/proc", pid)->state == 'T'; }));
  run(harness.io, stop_when_ready(*group, harness.folder / "up", 1, seconds(600)));
  EXPECT_EQ(group->group().exits().at(0).status.code, 5);
}

TEST(WorkerGroup, OneAttemptAfterTheOther) {
  Harness harness;
  auto group = harness.make();
  for (int attempt = 0; attempt < 3; ++attempt) {
    ASSERT_TRUE(group->start(harness.workers("echo try $TORCHELASTIC_RESTART_COUNT; exit 1", 2, attempt)));
    EXPECT_EQ(finish(harness, *group).size(), 2u);
  }
  EXPECT_EQ(harness.console_out(), "try 0\ntry 0\ntry 1\ntry 1\ntry 2\ntry 2\n");
}

TEST(WorkerGroup, SignalsIgnoredByOurParentStayIgnored) {
  Harness harness;
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  harness.options.inherited.action[SIGHUP] = ignore;
  harness.options.inherited.action[SIGCHLD] = ignore;  // the one exception: it would break every wait()
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("kill -HUP $$; grep SigIgn /proc/$$/status | cut -f2", 1)));
  const auto exits = finish(harness, *group);
  EXPECT_TRUE(exits.at(0).status.success()) << exits.at(0).status.to_string();
  const auto mask = std::stoull(harness.console_out(), nullptr, 16);
  EXPECT_NE(mask & (1ULL << (SIGHUP - 1)), 0u);
  EXPECT_EQ(mask & (1ULL << (SIGCHLD - 1)), 0u);
}

TEST(WorkerGroup, OnlyNamedDescriptorsAreInherited) {
  Harness harness;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);  // not close-on-exec, as Asio's
  auto group = harness.make();
  auto specs = harness.workers("ls /proc/self/fd | tr '\\n' ' '", 1);
  specs[0].process.inherit_fds = {ends[1]};
  ASSERT_TRUE(group->start(std::move(specs)));
  finish(harness, *group);
  ::close(ends[0]);
  ::close(ends[1]);
  // ls opens the folder itself under the first free number.
  EXPECT_EQ(harness.console_out(), ends[1] == 3 ? "0 1 2 3 4 " : "0 1 2 3 " + std::to_string(ends[1]) + " ");
}

TEST(WorkerGroup, RecorderOutlivesItsWorker) {
  Harness harness;
  harness.options.recorder_bytes = 4096;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers("printf hello >/proc/self/fd/$DDPRUN_RECORDER_FD; kill -KILL $$", 1)));
  finish(harness, *group);
  char text[6] = {};
  ASSERT_EQ(::pread(group->group().recorder_fd(LocalRank(0)), text, 5, 0), 5);
  EXPECT_STREQ(text, "hello");
}

// A memory control group (version 1) below ours, with a limit; gone with the object.
struct MemoryLimit {
  MemoryLimit() {
    std::ifstream lines("/proc/self/cgroup");
    for (std::string line; std::getline(lines, line);) {
      const auto at = line.find(":memory:");
      if (at == std::string::npos) continue;
      const std::string own = line.substr(at + 8);
      path = "/sys/fs/cgroup/memory" + (own == "/" ? "" : own) + "/ddprun-test-" + std::to_string(::getpid());
    }
    possible = !path.empty() && ::mkdir(path.c_str(), 0755) == 0;
    if (possible) write_file(path + "/memory.limit_in_bytes", "33554432");
  }
  ~MemoryLimit() {
    if (possible) remove_cgroup_folder(path);
  }
  std::string path;
  bool possible = false;
};

TEST(WorkerGroup, SaysThatTheMemoryLimitKilled) {
  MemoryLimit limit;
  if (!limit.possible) GTEST_SKIP() << "no memory control group (version 1) can be made here";
  // The group is a nested one, so only the kernel log tells, and its ids are those of the first pid namespace.
  if (std::filesystem::read_symlink("/proc/self/ns/pid") != "pid:[4026531836]") {
    GTEST_SKIP() << "in a pid namespace of its own";
  }
  Harness harness;
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers(
      "[ $RANK = 1 ] && { sleep 0.3; kill -KILL $$; }; echo $$ >" + limit.path + "/cgroup.procs; exec tail /dev/zero",
      2)));
  const auto exits = finish(harness, *group);
  ASSERT_EQ(exits.size(), 2u);
  for (const auto& exit : exits) EXPECT_EQ(exit.status.signal, SIGKILL);
  EXPECT_TRUE(group->group().evidence(LocalRank(0)).out_of_memory);
  EXPECT_NE(group->group().evidence(LocalRank(0)).out_of_memory_detail.find("32.0 MiB"), std::string::npos)
      << group->group().evidence(LocalRank(0)).out_of_memory_detail;
  EXPECT_FALSE(group->group().evidence(LocalRank(1)).out_of_memory);  // somebody's SIGKILL
}

bool can_make_cgroup(const Harness& harness) {
  const auto places = cgroup_places("/proc", harness.options.cgroup_root, "ddprun-probe-" + std::to_string(::getpid()));
  return std::any_of(places.begin(), places.end(), [](const std::string& place) {
    return ::mkdir(place.c_str(), 0755) == 0 && ::rmdir(place.c_str()) == 0;
  });
}

// A child that leaves the session and hides its environment: only a control group still knows it.
TEST(WorkerGroup, ControlGroupEndsWhatHides) {
  Harness harness;
  if (!can_make_cgroup(harness)) GTEST_SKIP() << "no control group can be made here";
  const auto before = cgroup_folders();
  auto group = harness.make();
  ASSERT_TRUE(
      group->start(harness.workers("setsid env -i /bin/sh -c 'echo $$ >'$T'/pid; exec sleep 600' & "
                                   "while [ ! -s $T/pid ]; do sleep 0.01; done; grep -c ddprun- /proc/self/cgroup",
                                   1)));
  finish(harness, *group);
  EXPECT_TRUE(is_dead(std::stoi(read_file(harness.folder / "pid"))));
  EXPECT_EQ(harness.console_out(), "1\n");
  EXPECT_EQ(cgroup_folders().size(), before.size() + 1);
  group.reset();
  EXPECT_EQ(cgroup_folders(), before);
}

// A worker may make groups of its own (a container runtime does): they go with ours, and who hides there is found.
TEST(WorkerGroup, ControlGroupsThatAWorkerMakesGoWithOurs) {
  Harness harness;
  if (!can_make_cgroup(harness)) GTEST_SKIP() << "no control group can be made here";
  const auto before = cgroup_folders();
  auto group = harness.make();
  ASSERT_TRUE(group->start(harness.workers(
      "own=$(grep ^0:: /proc/self/cgroup | cut -d: -f3); for g in /sys/fs/cgroup$own /sys/fs/cgroup/unified$own; do "
      "test -f $g/cgroup.procs && break; done; mkdir -p $g/sub/s2 $g/sub/s3 && setsid env -i /bin/sh -c "
      "'echo $$ >'$g'/sub/s3/cgroup.procs; echo $$ >'$T'/pid; exec sleep 600' & "
      "while [ ! -s $T/pid ]; do sleep 0.01; done; grep -c sub/s3 /proc/$(cat $T/pid)/cgroup",
      1)));
  finish(harness, *group);
  EXPECT_EQ(harness.console_out(), "1\n");
  EXPECT_TRUE(is_dead(std::stoi(read_file(harness.folder / "pid"))));
  group.reset();
  EXPECT_EQ(cgroup_folders(), before);
}

// It may be megabytes on a slow file system, and the event loop waits for it.
TEST(WorkerGroup, EvidenceIsReadOnce) {
  Harness harness;
  auto logs = LogTree::open(harness.folder / "logs", "none", nullptr);
  ASSERT_TRUE(logs);
  harness.options.logs = *logs;
  harness.options.output.redirects.all = 3;
  auto group = harness.make();
  ASSERT_TRUE(group->start(
      harness.workers("echo last >&2; echo '{\"message\": \"why\"}' >$TORCHELASTIC_ERROR_FILE; exit 1", 1)));
  finish(harness, *group);
  const WorkerEvidence first = group->group().evidence(LocalRank(0));
  EXPECT_EQ(first.last_lines, std::vector<std::string>{"last"});
  EXPECT_NE(first.error_file_json.find("why"), std::string::npos);
  ASSERT_EQ(first.log_paths.size(), 3u);
  for (const std::string& path : first.log_paths) EXPECT_TRUE(std::filesystem::remove(path)) << path;
  const WorkerEvidence& again = group->group().evidence(LocalRank(0));
  EXPECT_EQ(again.last_lines, first.last_lines);
  EXPECT_EQ(again.error_file_json, first.error_file_json);
}

TEST(WorkerGroup, DestructionEndsEverything) {
  Harness harness;
  pid_t leader = 0;
  {
    auto group = harness.make();
    ASSERT_TRUE(group->start(harness.workers("trap '' TERM; sleep 600 & echo $! >$T/child; wait; sleep 600", 1)));
    leader = group->group().pids().at(0);
    ASSERT_TRUE(eventually([&] { return !read_file(harness.folder / "child").empty(); }));
  }
  EXPECT_TRUE(is_dead(leader));
  EXPECT_TRUE(is_dead(std::stoi(read_file(harness.folder / "child"))));
}

}  // namespace
}  // namespace ddprun::launcher::testing
