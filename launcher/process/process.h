#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

// The only place that starts processes. Start by our own spawn(), then Boost.Process v2 adopts the child (where the
// kernel has pidfds; else waitpid() alone).
namespace ddprun::launcher {

// Taken first thing in main(): what our parent gave us and what every worker must get back (nohup!).
struct InheritedSignals {
  struct sigaction action[NSIG];
  rlimit descriptors;  // RLIMIT_NOFILE; a launcher that serves a store raises its own
  rlimit file_size;    // RLIMIT_FSIZE; the workers', not the flight recorders'
  InheritedSignals();

  bool ignored(int signal) const { return action[signal].sa_handler == SIG_IGN; }
};

// How a process ended.
struct ExitStatus {
  int code = 0;    // exit code; 0 when it was ended by a signal
  int signal = 0;  // number of the signal that ended it; 0 when it exited
  bool core_dumped = false;

  static ExitStatus from_wait_status(int wait_status);
  bool success() const { return code == 0 && signal == 0; }
  int shell_code() const { return signal != 0 ? 128 + signal : code; }  // what a shell would report
  std::string to_string() const;                                        // "exit code 3", "signal 9 (SIGKILL)"
};

struct SpawnSpec {
  std::string executable;                // a path; PATH is not searched
  std::vector<std::string> arguments;    // argv, [0] included
  std::vector<std::string> environment;  // "NAME=value", the whole of it
  std::string working_directory;         // "" = ours
  int stdin_fd = -1;                     // -1 = /dev/null
  int stdout_fd = -1;                    // -1 = inherit ours
  int stderr_fd = -1;
  std::vector<int> inherit_fds;  // kept open in the child under the same numbers (> 2); all others are closed
  std::vector<std::pair<int, std::uint64_t>> limits;  // RLIMIT_*, soft and hard
  std::vector<int> cpus;                              // affinity; empty = ours
  bool new_session = true;
  bool die_with_parent = true;  // PR_SET_PDEATHSIG SIGKILL
  int cgroup_fd = -1;           // folder of a v2 control group that the child starts in; -1 = ours
};

// Starts spec.executable in its own session. On failure no process and no descriptor is left; the error names the step
// ("exec /x/y: Permission denied"; codes as WorkerGroup::start()).
// The child shares our memory until its exec (as with vfork), so it makes system calls only. Main thread only:
// PDEATHSIG follows the thread.
Result<pid_t> spawn(const SpawnSpec& spec, const InheritedSignals& inherited);

// A running child. When its owner drops it, the whole process group is killed and the child is reaped.
class ChildProcess {
 public:
  // Takes over a child that spawn() gave. Where the kernel has no pidfd_open (or a sandbox hides it) the child can be
  // had, but not watched. Errors: exhausted (no descriptor left for its pidfd); the child is killed then.
  static Result<std::unique_ptr<ChildProcess>> adopt(const boost::asio::any_io_executor& executor, pid_t pid);
  virtual ~ChildProcess() = default;

  virtual pid_t pid() const = 0;
  // False: when_ended() calls nobody; the owner has to look at each SIGCHLD.
  virtual bool is_watched() const = 0;
  // Calls `handler` once when the child has ended (never, if this object goes first). It is still a zombie then: its
  // ids and its /proc entry are still its own.
  virtual void when_ended(std::function<void()> handler) = 0;
  // After that: takes the exit status; does not block. Before: blocks.
  virtual ExitStatus reap() = 0;
  // Lets go of a child that SIGKILL does not reach (stuck in the kernel): it is neither killed nor waited for again.
  // Nothing but the destructor may be called after that.
  virtual void abandon() = 0;
};

}  // namespace ddprun::launcher
