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
#include <vector>

#include "launcher/clone_child.h"
#include "launcher/process.h"

// Boost-free half of process.h: signals, exit status, spawn().
namespace ddprun::launcher {

InheritedSignals::InheritedSignals() {
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  for (int n = 0; n < NSIG; ++n) {
    action[n] = {};
    if (n > 0) ::sigaction(n, nullptr, &action[n]);
  }
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) descriptors = {RLIM_INFINITY, RLIM_INFINITY};
}

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return "SIG" + (abbreviation != nullptr ? std::string(abbreviation) : std::to_string(signal));
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

// What the child works from. Everything is ready before it starts: it may not allocate, lock or throw.
struct ChildPlan {
  const SpawnSpec* spec;
  char* const* argv;
  char* const* envp;
  const SignalChange* signals;
  std::size_t signal_count;
  const sigset_t* mask;
  const rlimit* descriptors;
  const cpu_set_t* cpus;
  std::size_t cpus_bytes;
  int null_fd;  // for standard input
  pid_t parent;
  // The child's answer; memory is shared. Read by the parent after the exec or the exit.
  volatile Step failed = Step::none;
  volatile int error = 0;
};

// The child runs in our memory on a stack of its own until its exec, while this thread is suspended, exactly as
// posix_spawn does it: no copy of the page tables (0.3 ms instead of 0.5-1.9 ms a child here). Our signal handlers must
// not run there, so all signals are blocked until every handler is gone.
#define DDPRUN_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined")))

[[noreturn]] DDPRUN_IN_CHILD void give_up(ChildPlan& plan, Step step) {
  plan.error = errno;
  plan.failed = step;
  ::_exit(127);
}

DDPRUN_IN_CHILD int run_child(void* argument) {
  ChildPlan& plan = *static_cast<ChildPlan*>(argument);
  const SpawnSpec& spec = *plan.spec;
  if (spec.new_session && ::setsid() < 0) give_up(plan, Step::session);
  if (spec.die_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(plan, Step::parent_death);
    if (::getppid() != plan.parent) give_up(plan, Step::orphaned);  // we died before the prctl: nobody would signal it
  }
  for (std::size_t i = 0; i < plan.signal_count; ++i) {
    struct sigaction action = {};
    action.sa_handler = plan.signals[i].ignore ? SIG_IGN : SIG_DFL;
    ::sigaction(plan.signals[i].number, &action, nullptr);
  }
  if (!spec.working_directory.empty() && ::chdir(spec.working_directory.c_str()) != 0) {
    give_up(plan, Step::directory);
  }
  if (plan.cpus != nullptr && ::sched_setaffinity(0, plan.cpus_bytes, plan.cpus) != 0) give_up(plan, Step::affinity);

  // The wanted descriptors may have the numbers 0..2 of one another: lift them first.
  const int wanted[3] = {spec.stdin_fd >= 0 ? spec.stdin_fd : plan.null_fd, spec.stdout_fd, spec.stderr_fd};
  int lifted[3];
  for (int i = 0; i < 3; ++i) {
    lifted[i] = wanted[i];
    if (wanted[i] >= 0 && wanted[i] < 3 && wanted[i] != i) {
      lifted[i] = ::fcntl(wanted[i], F_DUPFD_CLOEXEC, 3);
      if (lifted[i] < 0) give_up(plan, Step::stdio);
    }
  }
  for (int i = 0; i < 3; ++i) {
    if (lifted[i] < 0) continue;
    if (lifted[i] == i) {
      ::fcntl(i, F_SETFD, 0);
    } else if (::dup2(lifted[i], i) < 0) {
      give_up(plan, Step::stdio);
    }
  }
  // Asio's sockets and pipes are not close-on-exec by themselves, and a leaked listener keeps its port busy.
  if (::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) != 0) give_up(plan, Step::descriptors);
  for (const int fd : spec.inherit_fds) {
    if (::fcntl(fd, F_SETFD, 0) != 0) give_up(plan, Step::descriptors);
  }
  // Lowers the soft limit at most, which cannot fail; unknown (never here) stays as it is.
  if (plan.descriptors->rlim_cur != RLIM_INFINITY) ::setrlimit(RLIMIT_NOFILE, plan.descriptors);
  for (const auto& [resource, value] : spec.limits) {
    const rlimit limit{value, value};
    if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) give_up(plan, Step::limits);
  }
  ::sigprocmask(SIG_SETMASK, plan.mask, nullptr);
  ::execve(spec.executable.c_str(), plan.argv, plan.envp);
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
    // A parent that ignored SIGCHLD would break every wait() of the worker's own children.
    const bool ignore = inherited.ignored(n) && n != SIGCHLD;
    const bool same = ignore ? now.sa_handler == SIG_IGN : now.sa_handler == SIG_DFL;
    if (!same) changes.push_back({n, ignore});
  }
  return changes;
}

std::string describe(const SpawnSpec& spec, Step step) {
  std::string text = to_text(step);
  if (step == Step::exec) text += " " + spec.executable;
  if (step == Step::directory) text += " " + spec.working_directory;
  return text;
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
    if (!null_fd) return Error::from_errno(errno, "open /dev/null");
  }

  ChildPlan plan{.spec = &spec,
                 .argv = argv.data(),
                 .envp = envp.data(),
                 .signals = signals.data(),
                 .signal_count = signals.size(),
                 .mask = &inherited.mask,
                 .descriptors = &inherited.descriptors,
                 .cpus = spec.cpus.empty() ? nullptr : cpu_set,
                 .cpus_bytes = cpus_bytes,
                 .null_fd = null_fd.get(),
                 .parent = ::getpid()};
  constexpr std::size_t kStackBytes = 64 * 1024;  // plain system calls need a few KiB; sanitizers more
  std::vector<std::max_align_t> stack(kStackBytes / sizeof(std::max_align_t));

  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t pid =
      clone_child(run_child, &plan, stack.data(), stack.size() * sizeof(std::max_align_t), spec.cgroup_fd);
  const int clone_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);

  if (pid < 0) return Error::from_errno(clone_error, "clone for " + spec.executable);
  if (plan.failed != Step::none) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return Error::from_errno(plan.error, describe(spec, plan.failed));
  }
  return pid;
}

}  // namespace ddprun::launcher
