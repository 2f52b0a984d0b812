#pragma once

#include <dirent.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Finding and ending processes that are not (or no longer) in a worker's process group. /proc is an argument: tests
// have their own.
namespace ddprun::launcher {

// kill(2) to one process, or to the process group of `leader`. 0, -1 and 1 would mean us, everybody or init: a mistake
// of ours that must never reach the kernel.
void signal_process(pid_t pid, int signal);
void signal_group(pid_t leader, int signal);

struct ProcessStat {
  std::string name;
  char state = '?';
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  unsigned long long start_time = 0;  // since boot, in the kernel's ticks: with the id it names a process for ever
  int wait_status = 0;                // of a zombie, as waitpid() gives it; 0 when it may not be read

  bool is_dead() const { return state == 'Z' || state == 'X'; }
};

// /proc/<pid>/stat; nullopt when there is no such process.
std::optional<ProcessStat> read_process_stat(const std::string& proc_root, pid_t pid);
std::optional<ProcessStat> parse_process_stat(std::string_view line);

// Of the process's initial environment the entry that is `token`, or that and "." and more (see Guard::expect_workers).
// Not readable (another user's) counts as none.
std::optional<std::string> find_token(const std::string& proc_root, pid_t pid, std::string_view token);

// What was started, for messages: its arguments, shortened, without control characters.
std::string describe_command(const std::string& proc_root, pid_t pid, const ProcessStat& stat);
// It is one whose work is to clean up after the others: Python's multiprocessing.resource_tracker, torch_shm_manager.
bool is_tracker(const std::string& proc_root, pid_t pid);

// Signals `pid` if it is still the process that started at `start_time`. Its id may have been given to another.
void signal_if_same(const std::string& proc_root, pid_t pid, unsigned long long start_time, int signal);

// "DDPRUN_JOB_TOKEN=<our pid>.<16 random digits>": put into the workers' environment to know their descendants by it.
std::string make_job_token();

// Processes (no zombies) of one of `sessions`, or that carry `token` (as find_token()).
std::vector<pid_t> find_processes(const std::string& proc_root, const std::set<pid_t>& sessions,
                                  std::string_view token);

// Finds all descendants of `root` a bounded piece at a time. Those of `without` are left out, with all below them.
class ProcessWalk {
 public:
  ProcessWalk(std::string proc_root, pid_t root, std::set<pid_t> without);
  void also(pid_t pid);  // this one and all below it, whoever its parent is
  // Looks at about `count` more; true: all have been found.
  bool step(std::size_t count);
  // What has been found since the last call, zombies too.
  std::vector<std::pair<pid_t, ProcessStat>> take();

 private:
  void meet(pid_t pid);
  bool scan(std::size_t count);
  std::size_t list_children(pid_t parent);

  std::string proc_root_;
  pid_t root_;
  std::set<pid_t> without_, met_;
  std::vector<pid_t> todo_;
  std::vector<std::pair<pid_t, ProcessStat>> found_;
  // Kernels without /proc/<pid>/task/*/children: everything is read once.
  std::shared_ptr<DIR> folder_;
  bool scans_ = false;
  std::multimap<pid_t, pid_t> children_;
};

// All children of `parent`, zombies too: from /proc/<pid>/task/*/children where the kernel has it, else from every
// process's stat.
std::vector<pid_t> find_children(const std::string& proc_root, pid_t parent);

// Version 2 control groups: the processes in it (no zombies).
std::vector<pid_t> cgroup_members(const std::string& folder);
// Also those in the groups that its members have made in it, of the first 1000 groups.
std::vector<pid_t> cgroup_tree_members(const std::string& folder);
// SIGKILL to all in it and in its groups at once; does not wait for their death. Best effort.
void tell_cgroup_to_die(const std::string& folder);
// The same, and waits up to 1 s until they are dead.
void kill_cgroup(const std::string& folder);
// Removes the emptied group with the groups in it; false, with errno: it is still there, somebody lives in it. Does not
// wait.
bool remove_empty_cgroup(const std::string& folder);
// The same, and waits up to 1 s for its last members to go.
bool remove_cgroup_folder(const std::string& folder);

// Where a child of our own version 2 control group could be made: `name` in each place where the unified hierarchy may
// be mounted (`cgroup_root` itself, or `unified` in it). Nothing is made yet; mkdir tells whether it may be.
std::vector<std::string> cgroup_places(const std::string& proc_root, const std::string& cgroup_root,
                                       const std::string& name);

}  // namespace ddprun::launcher
