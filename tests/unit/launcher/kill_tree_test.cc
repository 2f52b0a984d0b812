#include "launcher/process/kill_tree.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "launcher/process/oom.h"
#include "tests/support/proc_files.h"

namespace ddprun::launcher {
namespace {

using testing::Folder;
using testing::write_all_text;

TEST(KillTree, StatWithParenthesesInTheName) {
  const auto stat = parse_process_stat("77 (a) b (c) S 12 34 56 0 -1");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 12);
  EXPECT_EQ(stat->group, 34);
  EXPECT_EQ(stat->session, 56);
  for (const char* broken : {"", "77", "77 (x", "77 (x) S", "77 (x) SS 1 2 3"}) {
    EXPECT_FALSE(parse_process_stat(broken)) << broken;
  }
}

struct FakeProc {
  Folder folder;
  void add(int pid, char state, int parent, int session, const std::string& environment) {
    const std::string base = folder / std::to_string(pid);
    write_all_text(base + "/stat", std::to_string(pid) + " (w) " + state + " " + std::to_string(parent) + " " +
                                       std::to_string(session) + " " + std::to_string(session) + " 0");
    write_all_text(base + "/environ", environment);
  }
};

TEST(KillTree, FindsBySessionAndByToken) {
  FakeProc proc;
  using namespace std::string_literals;
  proc.add(900001, 'S', 1, 900001, "A=1\0"s);
  proc.add(900002, 'S', 900001, 900001, ""s);
  proc.add(900003, 'Z', 1, 900001, ""s);
  proc.add(900004, 'S', 1, 900004, "A=1\0JOB=x\0B=2"s);
  proc.add(900005, 'S', 1, 900005, "A=JOB=x\0JOB=xy\0"s);
  auto found = find_processes(proc.folder.path(), {900001}, "JOB=x");
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (std::vector<pid_t>{900001, 900002, 900004}));
}

TEST(KillTree, ChildrenFromTheKernelsListOrFromAll) {
  FakeProc proc;
  proc.add(900001, 'S', 1, 1, "");
  proc.add(900002, 'S', 900001, 1, "");
  proc.add(900003, 'Z', 900001, 1, "");
  auto children = find_children(proc.folder.path(), 900001);
  std::sort(children.begin(), children.end());
  EXPECT_EQ(children, (std::vector<pid_t>{900002, 900003}));
  write_all_text(proc.folder / "900001/task/900001/children", "900007 900008 ");
  EXPECT_EQ(find_children(proc.folder.path(), 900001), (std::vector<pid_t>{900007, 900008}));
}

TEST(KillTree, StatTellsStartTimeAndWaitStatus) {
  std::string line = "77 (x y) Z 1 77 77";
  for (int field = 7; field <= 52; ++field) line += " " + std::to_string(field * 10);
  const auto stat = parse_process_stat(line);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->name, "x y");
  EXPECT_EQ(stat->start_time, 220u);
  EXPECT_EQ(stat->wait_status, 520);
  EXPECT_TRUE(stat->is_dead());
}

TEST(KillTree, TokensOfAnAttemptAreNotThoseOfAnother) {
  FakeProc proc;
  using namespace std::string_literals;
  proc.add(900001, 'S', 1, 900001, "A=1\0JOB=x.2.7\0"s);
  EXPECT_EQ(find_token(proc.folder.path(), 900001, "JOB=x.2"), "JOB=x.2.7");
  EXPECT_EQ(find_token(proc.folder.path(), 900001, "JOB=x"), "JOB=x.2.7");
  EXPECT_EQ(find_token(proc.folder.path(), 900001, "JOB=x.1"), std::nullopt);
  EXPECT_EQ(find_token(proc.folder.path(), 900001, "JOB=x.2.77"), std::nullopt);
  EXPECT_EQ(find_token(proc.folder.path(), 900002, "JOB=x"), std::nullopt);
}

TEST(KillTree, TrackersAreKnownByTheirCommand) {
  FakeProc proc;
  using namespace std::string_literals;
  const auto is = [&](const std::string& command) {
    write_all_text(proc.folder / "900001/cmdline", command);
    return is_tracker(proc.folder.path(), 900001);
  };
  EXPECT_TRUE(is("/usr/bin/python3\0-c\0from multiprocessing.resource_tracker import main;main(7)\0"s));
  EXPECT_TRUE(is("/site-packages/torch/bin/torch_shm_manager\0"s));
  EXPECT_FALSE(is("python3\0train.py\0torch_shm_manager\0"s));
  EXPECT_FALSE(is("grep\0multiprocessing.resource_tracker\0"s));
  EXPECT_FALSE(is(""));
}

TEST(KillTree, CommandsAreShownWithoutControlCharacters) {
  FakeProc proc;
  using namespace std::string_literals;
  ProcessStat stat;
  stat.name = "w";
  write_all_text(proc.folder / "900001/cmdline", "sh\0-c\0a\nb\033[31m\0"s);
  EXPECT_EQ(describe_command(proc.folder.path(), 900001, stat), "sh -c a?b?[31m");
  stat.state = 'D';  // its memory may not be readable without hanging
  EXPECT_EQ(describe_command(proc.folder.path(), 900001, stat), "w");
  stat.state = 'S';
  write_all_text(proc.folder / "900001/cmdline", std::string(5'000, 'x'));
  EXPECT_LT(describe_command(proc.folder.path(), 900001, stat).size(), 100u);
}

std::vector<pid_t> walk(const FakeProc& proc, pid_t root, std::set<pid_t> without, std::size_t step, int* steps) {
  ProcessWalk walk(proc.folder.path(), root, std::move(without));
  std::vector<pid_t> pids;
  *steps = 0;
  for (bool complete = false; !complete && *steps < 1'000; ++*steps) {
    complete = walk.step(step);
    for (const auto& [pid, stat] : walk.take()) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

TEST(ProcessWalk, FindsAllDescendantsInBoundedSteps) {
  for (const bool listed : {true, false}) {
    FakeProc proc;
    // 900001 -> 900010..900029 -> one each; 900002 is a stranger with a child.
    std::string children;
    proc.add(900001, 'S', 1, 1, "");
    proc.add(900002, 'S', 1, 1, "");
    proc.add(900003, 'S', 900002, 1, "");
    std::vector<pid_t> expected;
    for (int i = 10; i < 30; ++i) {
      proc.add(900000 + i, 'S', 900001, 1, "");
      proc.add(901000 + i, i % 2 == 0 ? 'Z' : 'S', 900000 + i, 1, "");
      children += std::to_string(900000 + i) + " ";
      expected.push_back(900000 + i);
      if (i != 12) expected.push_back(901000 + i);
      if (listed) {
        const std::string own = std::to_string(900000 + i);
        write_all_text(proc.folder / (own + "/task/" + own + "/children"), std::to_string(901000 + i));
      }
    }
    if (listed) write_all_text(proc.folder / "900001/task/900001/children", children);
    std::sort(expected.begin(), expected.end());
    int steps = 0;
    EXPECT_EQ(walk(proc, 900001, {901012}, 5, &steps), expected) << listed;
    EXPECT_GT(steps, 3);
    // Without 900010 and what is below it.
    const auto without = walk(proc, 900001, {900010}, 1'000, &steps);
    EXPECT_EQ(without.size(), 38u);
    EXPECT_EQ(steps, 1);
  }
}

struct FakeHost {
  Folder folder;
  std::string proc() const { return folder / "proc"; }
  std::string cgroup() const { return folder / "cgroup"; }
  void host_kills(int n) {
    write_all_text(proc() + "/vmstat", "pgfault 12\noom_kill " + std::to_string(n) + "\nx 1\n");
  }
  void v1(const std::string& group, int kills) {
    write_all_text(cgroup() + "/memory" + group + "/memory.oom_control",
                   "oom_kill_disable 0\nunder_oom 0\noom_kill " + std::to_string(kills) + "\n");
    write_all_text(cgroup() + "/memory" + group + "/memory.stat", "cache 0\nhierarchical_memory_limit 67108864\n");
  }
  void v2(const std::string& group, int kills) {
    write_all_text(cgroup() + group + "/memory.events", "low 0\noom 1\noom_kill " + std::to_string(kills) + "\n");
  }
  void member(const std::string& pid, const std::string& lines) {
    write_all_text(proc() + "/" + pid + "/cgroup", lines);
  }
};

ExitStatus killed() {
  ExitStatus status;
  status.signal = SIGKILL;
  return status;
}

TEST(OomWatch, VersionOneCounterOfOurGroup) {
  FakeHost host;
  host.member("self", "5:devices:/\n4:memory:/job/a\n0::/\n");
  host.member("77", "5:devices:/\n4:memory:/job/a\n0::/\n");
  host.host_kills(3);
  host.v1("/job/a", 1);
  OomWatch watch(host.proc(), host.cgroup(), host.folder / "none");
  watch.mark();
  EXPECT_FALSE(watch.judge(77, killed()).out_of_memory);  // somebody's SIGKILL
  host.host_kills(4);
  EXPECT_FALSE(watch.judge(77, killed()).out_of_memory);  // the kernel killed in another group
  host.v1("/job/a", 2);
  const auto verdict = watch.judge(77, killed());
  EXPECT_TRUE(verdict.out_of_memory);
  EXPECT_EQ(verdict.detail, "limit 64.0 MiB of control group /job/a");
  // The one kill explains that one end, not a neighbour's exit code.
  ExitStatus failed;
  failed.code = 1;
  EXPECT_FALSE(watch.judge(77, failed).out_of_memory);
}

TEST(OomWatch, WorkersOwnGroup) {
  FakeHost host;
  host.member("self", "4:memory:/job\n");
  host.member("77", "4:memory:/job/worker (deleted)\n");
  host.host_kills(0);
  host.v1("/job", 0);
  OomWatch watch(host.proc(), host.cgroup(), host.folder / "none");
  watch.mark();
  host.v1("/job/worker", 1);
  host.host_kills(1);
  EXPECT_TRUE(watch.judge(77, killed()).out_of_memory);
}

TEST(OomWatch, VersionTwoCounterAndLimitAbove) {
  FakeHost host;
  host.member("self", "0::/slice/job\n");
  host.member("77", "0::/slice/job\n");
  host.v2("/slice/job", 0);
  write_all_text(host.cgroup() + "/slice/job/memory.max", "max\n");
  write_all_text(host.cgroup() + "/slice/memory.max", "1073741824\n");
  OomWatch watch(host.proc(), host.cgroup(), host.folder / "none");
  watch.mark();
  EXPECT_FALSE(watch.judge(77, killed()).out_of_memory);
  host.v2("/slice/job", 1);
  const auto verdict = watch.judge(77, killed());
  EXPECT_TRUE(verdict.out_of_memory);
  EXPECT_EQ(verdict.detail, "limit 1.0 GiB of control group /slice/job");
}

TEST(OomWatch, AKilledHelperExplainsAnExitCode) {
  FakeHost host;
  host.member("self", "0::/job\n");
  host.member("77", "0::/job\n");
  host.v2("/job", 0);
  OomWatch watch(host.proc(), host.cgroup(), host.folder / "none");
  watch.mark();
  host.v2("/job", 1);
  ExitStatus failed;
  failed.code = 1;
  const auto verdict = watch.judge(77, failed);
  EXPECT_TRUE(verdict.out_of_memory);
  EXPECT_NE(verdict.detail.find("a process that it had started was killed"), std::string::npos);
  EXPECT_FALSE(watch.judge(77, ExitStatus{}).out_of_memory);  // a good end needs no explanation
}

TEST(OomWatch, KernelsLogNamesTheProcessAndTheLimit) {
  FakeHost host;
  host.member("self", "4:memory:/job\n");
  host.member("77", "4:memory:/\n");  // what version 1 tells of a dead process
  host.host_kills(0);
  host.v1("/job", 0);
  host.v1("/job/inner", 1);
  const std::string log = host.folder / "kmsg";
  write_all_text(log, "6,1,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/old,task=x,pid=77,uid=0\n");
  OomWatch watch(host.proc(), host.cgroup(), log);
  watch.mark();
  host.host_kills(1);
  EXPECT_FALSE(watch.judge(77, killed()).out_of_memory);  // that line is older than this attempt
  std::ofstream(log, std::ios::app) << "6,2,2,-;other\n6,3,3,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),"
                                       "oom_memcg=/job/inner,task_memcg=/job/inner,task=python,pid=77,uid=0\n";
  const auto verdict = watch.judge(77, killed());
  EXPECT_TRUE(verdict.out_of_memory);
  EXPECT_EQ(verdict.detail, "limit 64.0 MiB of control group /job/inner");
  EXPECT_FALSE(watch.judge(78, killed()).out_of_memory);
}

TEST(OomWatch, NoCountersNoVerdict) {
  FakeHost host;
  OomWatch watch(host.proc(), host.cgroup(), host.folder / "none");
  watch.mark();
  EXPECT_FALSE(watch.judge(77, killed()).out_of_memory);
}

}  // namespace
}  // namespace ddprun::launcher
