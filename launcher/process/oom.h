#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/unique_fd.h"
#include "launcher/process/process.h"

namespace ddprun::launcher {

// Tells a worker that the kernel killed for memory from one that somebody killed: by the oom_kill counters of its
// memory control group (v1 memory.oom_control, v2 memory.events) and of the whole host (/proc/vmstat).
class OomWatch {
 public:
  OomWatch(std::string proc_root, std::string cgroup_root, std::string kernel_log = "/dev/kmsg");

  void mark();  // the counters as they are now, before the workers start

  struct Verdict {
    bool out_of_memory = false;
    std::string detail;  // "limit 64.0 MiB of control group /job7"; "" when there is no more to say
  };
  // `pid` has ended with `status` and is not reaped yet: its /proc entry still tells its control group.
  Verdict judge(pid_t pid, const ExitStatus& status);

 private:
  struct Group {
    std::string name;    // as in /proc/<pid>/cgroup
    std::string folder;  // "" = not known
    bool v2 = false;
  };
  Group locate(const std::string& pid) const;
  std::optional<std::uint64_t> kills(const Group& group) const;
  std::optional<std::uint64_t> kills_of_host() const;
  std::string limit_text(const Group& group) const;
  void read_kernel_log();

  std::string proc_root_, cgroup_root_, kernel_log_path_;
  UniqueFd kernel_log_;
  std::string kernel_log_rest_;
  std::map<pid_t, std::string> named_;  // killed for memory, by the kernel's log: control group whose limit it was
  Group own_;
  std::uint64_t own_before_ = 0;
  std::optional<std::uint64_t> host_before_;
  std::uint64_t attributed_ = 0;  // kills that already explain a worker's end
};

// "64.0 MiB"
std::string bytes_text(std::uint64_t bytes);

}  // namespace ddprun::launcher
