#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

// Finding and ending processes that are not (or no longer) in a worker's process group. /proc is an argument: tests
// have their own.
namespace ddprun::launcher {

// kill(2) to one process, or to the process group of `leader`. 0, -1 and 1 would mean us, everybody or init: a mistake
// of ours that must never reach the kernel.
void signal_process(pid_t pid, int signal);
void signal_group(pid_t leader, int signal);

struct ProcessStat {
  char state = '?';
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
};

// /proc/<pid>/stat; nullopt when there is no such process.
std::optional<ProcessStat> read_process_stat(const std::string& proc_root, pid_t pid);
std::optional<ProcessStat> parse_process_stat(std::string_view line);

// "NAME=value" stands in the process's initial environment. Not readable (another user's) counts as no.
bool has_environment(const std::string& proc_root, pid_t pid, std::string_view name_and_value);

// "DDPRUN_JOB_TOKEN=<our pid>.<16 random digits>": put into the workers' environment to know their descendants by it.
std::string make_job_token();

// Processes (no zombies) of one of `sessions`, or with `token` in their environment.
std::vector<pid_t> find_processes(const std::string& proc_root, const std::set<pid_t>& sessions,
                                  std::string_view token);

// All children of `parent`, zombies too: from /proc/<pid>/task/*/children where the kernel has it, else from every
// process's stat.
std::vector<pid_t> find_children(const std::string& proc_root, pid_t parent);

// No initial environment can be read: it was started with an empty one, is in the middle of an exec, or is dying.
bool shows_no_environment(const std::string& proc_root, pid_t pid);

// `pid` (also a zombie) is in the version 2 control group whose folder is `folder`.
bool is_in_cgroup(const std::string& proc_root, pid_t pid, const std::string& folder);

// Version 2 control groups: kills all in it at once and waits up to 1 s until they are dead. Best effort.
void kill_cgroup(const std::string& folder);
// Removes the emptied group; waits up to 1 s for its last members to go. False: it is still there.
bool remove_cgroup_folder(const std::string& folder);

// Where a child of our own version 2 control group could be made: `name` in each place where the unified hierarchy may
// be mounted (`cgroup_root` itself, or `unified` in it). Nothing is made yet; mkdir tells whether it may be.
std::vector<std::string> cgroup_places(const std::string& proc_root, const std::string& cgroup_root,
                                       const std::string& name);

}  // namespace ddprun::launcher
