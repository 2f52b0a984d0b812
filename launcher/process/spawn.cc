#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "common/blocked_signals.h"
#include "common/signal_names.h"
#include "launcher/process/clone_child.h"
#include "launcher/process/limits.h"
#include "launcher/process/process.h"

// Boost-free half of process.h: signals, exit status, spawn().
namespace ddprun::launcher {

InheritedSignals::InheritedSignals() {
  for (int n = 0; n < NSIG; ++n) {
    action[n] = {};
    if (n > 0) ::sigaction(n, nullptr, &action[n]);
  }
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) descriptors = {RLIM_INFINITY, RLIM_INFINITY};
  if (::getrlimit(RLIMIT_FSIZE, &file_size) != 0) file_size = {RLIM_INFINITY, RLIM_INFINITY};
}

ExitStatus ExitStatus::from_wait_status(int wait_status) {
  ExitStatus status;
  if (WIFSIGNALED(wait_status)) {
    status.signal = WTERMSIG(wait_status);
    status.core_dumped = WCOREDUMP(wait_status);
  } else {
    status.code = WEXITSTATUS(wait_status);
  }
  return status;
}

std::string ExitStatus::to_string() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  return "signal " + std::to_string(signal) + " (" + signal_name(signal) + ")" + (core_dumped ? ", core dumped" : "");
}

namespace {

enum class Step { none, session, parent_death, orphaned, limits, affinity, directory, stdio, descriptors, exec };

const char* to_text(Step step) {
  switch (step) {
    case Step::none:
      return "clone";
    case Step::session:
      return "setsid";
    case Step::parent_death:
      return "prctl(PR_SET_PDEATHSIG)";
    case Step::orphaned:
      return "the launcher ended";
    case Step::limits:
      return "setrlimit";
    case Step::affinity:
      return "sched_setaffinity";
    case Step::directory:
      return "chdir to";
    case Step::stdio:
      return "dup2";
    case Step::descriptors:
      return "close_range";
    case Step::exec:
      return "exec";
  }
  return "?";
}

struct SignalChange {
  int number;
  bool ignore;  // else the default action
};

struct Limit {
  int resource;
  rlimit value;
};

// What the child works from. Everything is ready before it starts: it may not allocate, lock or throw.
struct ChildPlan {
  const SpawnSpec* spec;
  const char* path;
  const char* directory;  // nullptr = ours
  const int* inherit;
  std::size_t inherit_count;
  const Limit* limits;
  std::size_t limit_count;
  char* const* argv;
  char* const* envp;
  const SignalChange* signals;
  std::size_t signal_count;
  const rlimit* descriptors;
  const rlimit* file_size;
  const cpu_set_t* cpus;
  std::size_t cpus_bytes;
  int stdin_fd;
  pid_t parent;
  int highest_descriptor;  // -1 = the kernel has close_range
  // The child's answer; memory is shared. Read by the parent after the exec or the exit.
  volatile Step failed = Step::none;
  volatile int error = 0;
};

// The child runs in our memory on a stack of its own until its exec, while this thread is suspended, exactly as
// posix_spawn does it: no copy of the page tables (0.3 ms instead of 0.5-1.9 ms a child here). Our signal handlers must
// not run there, so all signals are blocked until every handler is gone.
#define DDPRUN_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined")))

// Raw system calls: the C library's wrappers may be intercepted (sanitizers keep tables of descriptors and handlers, in
// memory that is still the parent's).
template <typename... Args>
DDPRUN_IN_CHILD long raw(long number, Args... arguments) {
  return ::syscall(number, arguments...);
}

// As the kernel wants it; the C library's struct sigaction is another.
struct KernelSigaction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  unsigned long mask;
};
constexpr std::size_t kKernelSignalSetBytes = 8;

[[noreturn]] DDPRUN_IN_CHILD void give_up(ChildPlan& plan, Step step) {
  plan.error = errno;
  plan.failed = step;
  while (true) raw(SYS_exit_group, 127);
}

// Kernels before 5.11, and sandboxes that do not know the call.
DDPRUN_IN_CHILD void close_on_exec_one_by_one(int highest) {
  for (int fd = 3; fd <= highest; ++fd) raw(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);  // most are none: no error
}

DDPRUN_IN_CHILD int run_child(void* argument) {
  ChildPlan& plan = *static_cast<ChildPlan*>(argument);
  const SpawnSpec& spec = *plan.spec;
  if (spec.new_session && raw(SYS_setsid) < 0) give_up(plan, Step::session);
  if (spec.die_with_parent) {
    if (raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) give_up(plan, Step::parent_death);
    // We died before the prctl: nobody would signal it.
    if (raw(SYS_getppid) != plan.parent) give_up(plan, Step::orphaned);
  }
  for (std::size_t i = 0; i < plan.signal_count; ++i) {
    KernelSigaction action = {};
    action.handler = plan.signals[i].ignore ? SIG_IGN : SIG_DFL;
    raw(SYS_rt_sigaction, plan.signals[i].number, &action, nullptr, kKernelSignalSetBytes);
  }
  if (plan.directory != nullptr && raw(SYS_chdir, plan.directory) != 0) give_up(plan, Step::directory);
  if (plan.cpus != nullptr && raw(SYS_sched_setaffinity, 0, plan.cpus_bytes, plan.cpus) != 0) {
    give_up(plan, Step::affinity);
  }

  // The wanted descriptors may have the numbers 0..2 of one another: lift them first.
  const int wanted[3] = {plan.stdin_fd, spec.stdout_fd, spec.stderr_fd};
  int lifted[3];
  for (int i = 0; i < 3; ++i) {
    lifted[i] = wanted[i];
    if (wanted[i] >= 0 && wanted[i] < 3 && wanted[i] != i) {
      lifted[i] = static_cast<int>(raw(SYS_fcntl, wanted[i], F_DUPFD_CLOEXEC, 3));
      if (lifted[i] < 0) give_up(plan, Step::stdio);
    }
  }
  for (int i = 0; i < 3; ++i) {
    if (lifted[i] < 0) continue;
    const long done = lifted[i] == i ? raw(SYS_fcntl, i, F_SETFD, 0) : raw(SYS_dup3, lifted[i], i, 0);
    if (done < 0) give_up(plan, Step::stdio);
  }
  // Asio's sockets and pipes are not close-on-exec by themselves, and a leaked listener keeps its port busy.
  if (plan.highest_descriptor >= 0) {
    close_on_exec_one_by_one(plan.highest_descriptor);
  } else if (raw(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
    give_up(plan, Step::descriptors);
  }
  for (std::size_t i = 0; i < plan.inherit_count; ++i) {
    if (raw(SYS_fcntl, plan.inherit[i], F_SETFD, 0) != 0) give_up(plan, Step::descriptors);
  }
  // Lowers the soft limit at most, which cannot fail; unknown (never here) stays as it is.
  if (plan.descriptors->rlim_cur != RLIM_INFINITY) raw(SYS_prlimit64, 0, RLIMIT_NOFILE, plan.descriptors, nullptr);
  if (plan.file_size->rlim_cur != RLIM_INFINITY) raw(SYS_prlimit64, 0, RLIMIT_FSIZE, plan.file_size, nullptr);
  for (std::size_t i = 0; i < plan.limit_count; ++i) {
    if (raw(SYS_prlimit64, 0, plan.limits[i].resource, &plan.limits[i].value, nullptr) != 0) {
      give_up(plan, Step::limits);
    }
  }
  // Nothing is blocked: what a job runner's thread had blocked when it started us is no wish of the user's, and a
  // worker that cannot hear SIGTERM cannot save its state.
  const unsigned long none = 0;
  raw(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, kKernelSignalSetBytes);
  raw(SYS_execve, plan.path, plan.argv, plan.envp);
  give_up(plan, Step::exec);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

// Signals whose disposition must differ from ours in the child. What is default here and there needs no call; an exec
// resets handlers anyway, but they must not run between the unblocking and the exec.
std::vector<SignalChange> signal_changes(const InheritedSignals& inherited) {
  std::vector<SignalChange> changes;
  for (int n = 1; n < NSIG; ++n) {
    struct sigaction now = {};
    if (::sigaction(n, nullptr, &now) != 0) continue;  // the C library keeps some for itself
    // A parent that ignored SIGCHLD would break every wait() of the worker's own children. SIGPIPE and SIGXFSZ are
    // ignored by supervisors for their own sake (systemd, Python, ourselves), not for what they start.
    const bool ignore = inherited.ignored(n) && n != SIGCHLD && n != SIGPIPE && n != SIGXFSZ;
    const bool same = ignore ? now.sa_handler == SIG_IGN : now.sa_handler == SIG_DFL;
    if (!same) changes.push_back({n, ignore});
  }
  return changes;
}

Error error_of(const SpawnSpec& spec, Step step, int error) {
  std::string text = to_text(step);
  if (step == Step::exec) text += " " + spec.executable;
  if (step == Step::directory) text += " " + spec.working_directory;
  if (step == Step::exec) {
    Error as_it_is = Error::from_errno(error, text);
    if (error == EACCES || error == ENOEXEC) return Error(Errc::not_executable, as_it_is.message());
    return error == EAGAIN ? start_error(error, text) : as_it_is;
  }
  // For the others EPERM is about what was asked (a limit above the hard one), not about the call.
  return error == EPERM ? Error::from_errno(error, text) : start_error(error, text);
}

// What close_on_exec_one_by_one() needs where the kernel cannot do it (a call about no descriptor tells); else -1.
int highest_descriptor_if_needed() {
  if (raw(SYS_close_range, ~0U, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return -1;
  int highest = 2;
  std::error_code failure;
  std::filesystem::directory_iterator entry("/proc/self/fd", failure);
  for (; !failure && entry != std::filesystem::directory_iterator(); entry.increment(failure)) {
    highest = std::max(highest, std::atoi(entry->path().filename().c_str()));
  }
  constexpr int kUnknown = 4096;  // no /proc
  return failure || highest == 2 ? std::max(highest, kUnknown) : highest;
}

}  // namespace

Result<pid_t> spawn(const SpawnSpec& spec, const InheritedSignals& inherited) {
  const std::vector<char*> argv = pointers(spec.arguments);
  const std::vector<char*> envp = pointers(spec.environment);
  const std::vector<SignalChange> signals = signal_changes(inherited);

  const int highest = spec.cpus.empty() ? 0 : *std::max_element(spec.cpus.begin(), spec.cpus.end());
  const std::size_t cpus_bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(highest) + 1);
  std::vector<unsigned char> cpus(spec.cpus.empty() ? 0 : cpus_bytes);
  auto* const cpu_set = reinterpret_cast<cpu_set_t*>(cpus.data());
  for (const int cpu : spec.cpus) CPU_SET_S(static_cast<std::size_t>(cpu), cpus_bytes, cpu_set);

  UniqueFd null_fd;
  if (spec.stdin_fd < 0) {
    null_fd.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null_fd) return start_error(errno, "open /dev/null");
  }

  std::vector<Limit> limits;
  for (const auto& [resource, value] : spec.limits) limits.push_back({resource, rlimit{value, value}});

  ChildPlan plan{.spec = &spec,
                 .path = spec.executable.c_str(),
                 .directory = spec.working_directory.empty() ? nullptr : spec.working_directory.c_str(),
                 .inherit = spec.inherit_fds.data(),
                 .inherit_count = spec.inherit_fds.size(),
                 .limits = limits.data(),
                 .limit_count = limits.size(),
                 .argv = argv.data(),
                 .envp = envp.data(),
                 .signals = signals.data(),
                 .signal_count = signals.size(),
                 .descriptors = &inherited.descriptors,
                 .file_size = &inherited.file_size,
                 .cpus = spec.cpus.empty() ? nullptr : cpu_set,
                 .cpus_bytes = cpus_bytes,
                 .stdin_fd = spec.stdin_fd >= 0 ? spec.stdin_fd : null_fd.get(),
                 .parent = ::getpid(),
                 .highest_descriptor = highest_descriptor_if_needed()};
  constexpr std::size_t kStackBytes = 64 * 1024;  // plain system calls need a few KiB; sanitizers more
  std::vector<std::max_align_t> stack(kStackBytes / sizeof(std::max_align_t));

  pid_t pid = -1;
  int clone_error = 0;
  {
    const BlockedSignals blocked;
    pid = clone_child(run_child, &plan, stack.data(), stack.size() * sizeof(std::max_align_t), spec.cgroup_fd);
    clone_error = errno;
  }
  if (pid < 0) return start_error(clone_error, "clone for " + spec.executable);
  if (plan.failed != Step::none) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return error_of(spec, plan.failed, plan.error);
  }
  return pid;
}

}  // namespace ddprun::launcher
