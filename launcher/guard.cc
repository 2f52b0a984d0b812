#include "launcher/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <new>
#include <set>
#include <thread>

#include "launcher/kill_tree.h"
#include "launcher/log_tree.h"

namespace ddprun::launcher {
namespace {

struct Duties {
  std::set<pid_t> sessions;
  std::set<std::string> folders;
  std::set<std::string> cgroups;
  bool workers_expected = false;
};

// One command: a verb, its argument, a NUL.
void take(Duties& duties, const std::string& command) {
  if (command.empty()) return;
  const std::string argument = command.substr(1);
  switch (command[0]) {
    case 'w':
      duties.workers_expected = true;
      break;
    case 'W':
      duties.workers_expected = false;
      break;
    case 's':
      duties.sessions.insert(static_cast<pid_t>(std::stol(argument)));
      break;
    case 'S':
      duties.sessions.erase(static_cast<pid_t>(std::stol(argument)));
      break;
    case 'f':
      duties.folders.insert(argument);
      break;
    case 'F':
      duties.folders.erase(argument);
      break;
    case 'c':
      duties.cgroups.insert(argument);
      break;
    case 'C':
      duties.cgroups.erase(argument);
      break;
    default:  // 'l': the time was changed
      break;
  }
}

void kill_workers(const Duties& duties, const std::string& token) {
  for (const auto& cgroup : duties.cgroups) kill_cgroup(cgroup);
  if (!duties.workers_expected) return;
  for (const pid_t leader : duties.sessions) signal_group(leader, SIGKILL);
  // Until nothing is found three times: a process may have forked while we looked, and one that is in the middle of
  // an exec shows no environment.
  int quiet = 0;
  for (int round = 0; round < 200 && quiet < 3; ++round) {
    const auto strays = find_processes("/proc", duties.sessions, token);
    for (const pid_t pid : strays) signal_process(pid, SIGKILL);
    quiet = strays.empty() ? quiet + 1 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Sets the alarm; 0 switches it off. On CLOCK_BOOTTIME, so that it is due at once after a suspend.
void set_alarm(int alarm, long long at_ms) {
  itimerspec when = {};
  when.it_value.tv_sec = static_cast<time_t>(at_ms / 1000);
  when.it_value.tv_nsec = static_cast<long>(at_ms % 1000) * 1'000'000;
  ::timerfd_settime(alarm, TFD_TIMER_ABSTIME, &when, nullptr);
}

void fulfil(const Duties& duties, const std::string& token) {
  kill_workers(duties, token);
  for (const auto& folder : duties.folders) remove_tree(folder);
  for (const auto& cgroup : duties.cgroups) remove_cgroup_folder(cgroup);
}

// The time may be put off while the alarm of the old one rings, and a guard that was stopped finds old alarms: what
// counts is what the shared memory says now.
void ring(int alarm, long long kill_at_ms, const Duties& duties, const std::string& token) {
  std::uint64_t times = 0;
  if (::read(alarm, &times, sizeof times) != sizeof times) return;
  if (kill_at_ms != 0 && kill_at_ms <= boot_time().count()) {
    kill_workers(duties, token);
  } else {
    set_alarm(alarm, kill_at_ms);
  }
}

[[noreturn]] void live(int pipe, const std::string& token, const std::atomic<long long>& kill_at) {
  ::setsid();
  ::prctl(PR_SET_NAME, "ddprun-guard");
  // Nothing of the user's may be held: `ddprun ... | tee` must see the end when the launcher goes.
  const int null_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null_fd, fd);
  if (pipe != 3) ::dup2(pipe, 3);
  ::syscall(SYS_close_range, 4U, ~0U, 0);
  if (::chdir("/") != 0) ::_exit(1);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  for (int n = 1; n < NSIG; ++n) ::sigaction(n, &ignore, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  const int alarm = ::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  Duties duties;
  long long armed = 0;
  std::string pending;
  char buffer[4096];
  while (true) {
    pollfd ready[2] = {{3, POLLIN, 0}, {alarm, POLLIN, 0}};
    if (::poll(ready, alarm < 0 ? 1 : 2, -1) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (ready[0].revents != 0) {  // orders first: they may set the alarm anew
      const ssize_t n = ::read(3, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      pending.append(buffer, static_cast<std::size_t>(n));
      for (std::size_t end; (end = pending.find('\0')) != std::string::npos; pending.erase(0, end + 1)) {
        take(duties, pending.substr(0, end));
      }
      if (const long long wanted = kill_at.load(); wanted != armed) {
        armed = wanted;
        set_alarm(alarm, armed);
      }
    } else if (ready[1].revents != 0) {
      armed = kill_at.load();
      ring(alarm, armed, duties, token);
    }
  }
  fulfil(duties, token);
  ::_exit(0);
}

}  // namespace

std::chrono::milliseconds boot_time() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::milliseconds(static_cast<long long>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000);
}

void Guard::Unmap::operator()(SharedTime* time) const { ::munmap(time, sizeof *time); }

Result<std::shared_ptr<Guard>> Guard::start() {
  static_assert(SharedTime::is_always_lock_free);
  void* memory = ::mmap(nullptr, sizeof(SharedTime), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Error::from_errno(errno, "memory for the guard process");
  std::unique_ptr<SharedTime, Unmap> kill_at(new (memory) SharedTime(0));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "pipe for the guard process");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::string token = make_job_token();
  // No handler may run in the child: all is blocked until it ignores everything.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t pid = ::fork();
  const int error = errno;
  if (pid == 0) live(read_end.get(), token, *kill_at);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return Error::from_errno(error, "fork of the guard process");
  return std::shared_ptr<Guard>(new Guard(pid, std::move(write_end), std::move(token), std::move(kill_at)));
}

Guard::~Guard() {
  pipe_.reset();  // its end of file is its order to go
  if (pid_ <= 0) return;
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (pidfd) {
    pollfd ready{pidfd.get(), POLLIN, 0};
    int n;
    do n = ::poll(&ready, 1, 5000);
    while (n < 0 && errno == EINTR);
    if (n == 0) signal_process(pid_, SIGKILL);  // stopped by someone
  }
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::tell(char verb, const std::string& argument) {
  std::string message;
  message += verb;
  message += argument;
  message += '\0';
  // At most PIPE_BUF, so it is whole. A guard that someone killed is no reason to fail: EPIPE is let pass (the
  // launcher ignores SIGPIPE).
  while (::write(pipe_.get(), message.data(), message.size()) < 0 && errno == EINTR) {
  }
}

void Guard::expect_workers() { tell('w', ""); }
void Guard::no_workers_left() { tell('W', ""); }
void Guard::add_session(pid_t leader) { tell('s', std::to_string(leader)); }
void Guard::remove_session(pid_t leader) { tell('S', std::to_string(leader)); }
void Guard::add_folder(const std::string& path) { tell('f', path); }
void Guard::remove_folder(const std::string& path) { tell('F', path); }
void Guard::add_cgroup(const std::string& path) { tell('c', path); }
void Guard::remove_cgroup(const std::string& path) { tell('C', path); }

void Guard::kill_workers_at(std::optional<TimePoint> when) {
  const std::chrono::milliseconds now = boot_time();
  long long at_ms = 0;
  if (when) {
    const auto ahead = std::chrono::duration_cast<std::chrono::milliseconds>(*when - SteadyClock::now());
    at_ms = std::max(1LL, static_cast<long long>((now + ahead).count()));
  }
  const long long before = kill_at_->exchange(at_ms);
  // A time that is put off need not be told: the guard looks again when the old one, which is to come yet, has come.
  if (before == at_ms || (before > now.count() && at_ms >= before)) return;
  // A guard that someone stopped must not stop us when the pipe is full: it looks after whatever it reads.
  pollfd room{pipe_.get(), POLLOUT, 0};
  if (::poll(&room, 1, 0) == 1) tell('l', "");
}

}  // namespace ddprun::launcher
