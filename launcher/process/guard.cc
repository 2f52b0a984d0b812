#include "launcher/process/guard.h"

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
#include <charconv>
#include <chrono>
#include <cstdint>
#include <new>
#include <thread>
#include <vector>

#include "common/blocked_signals.h"
#include "common/log.h"
#include "launcher/output/log_tree.h"
#include "launcher/process/kill_tree.h"
#include "launcher/process/leftover_plan.h"
#include "launcher/process/limits.h"
#include "launcher/process/reap.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr LeftoverTimes kTimes;
constexpr milliseconds kLook{5}, kLongLook{100};
constexpr int kMaxReplacements = 10;  // one that dies at once, again and again, is no help

long long to_number(std::string_view text) {
  long long number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// One command: a verb, its argument, a NUL. Both processes take them, so that they know the same.
void take(GuardDuties& duties, char verb, const std::string& argument) {
  const std::size_t space = std::min(argument.find(' '), argument.size());
  const auto pid = static_cast<pid_t>(to_number(argument));
  switch (verb) {
    case 'w':
      duties.generation = to_number(argument);
      duties.token = argument.substr(std::min(space + 1, argument.size()));
      break;
    case 'W':
      duties.token.clear();
      break;
    case 's':
      duties.sessions[pid] = static_cast<unsigned long long>(
          to_number(std::string_view(argument).substr(std::min(space + 1, argument.size()))));
      break;
    case 'S':
      duties.sessions.erase(pid);
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

struct Stray {
  pid_t pid = 0;
  unsigned long long start_time = 0;
  bool tracker = false;
};

// A process that waits in the kernel (state D) may not show its command without making us wait, too: it counts as a
// tracker as long as `unknown_is_tracker`.
std::vector<Stray> find_strays(const GuardDuties& duties, bool unknown_is_tracker) {
  std::set<pid_t> sessions;
  for (const auto& [leader, start_time] : duties.sessions) {
    const auto stat = read_process_stat("/proc", leader);
    // A leader that has gone leaves its id to its session as long as there is one. Another process with that id is
    // somebody else's.
    if (!stat || stat->start_time == start_time) sessions.insert(leader);
  }
  std::set<pid_t> found;
  for (const auto& cgroup : duties.cgroups) {
    for (const pid_t pid : cgroup_tree_members(cgroup)) found.insert(pid);
  }
  if (!duties.token.empty()) {
    for (const pid_t pid : find_processes("/proc", sessions, duties.token)) found.insert(pid);
  }
  std::vector<Stray> strays;
  for (const pid_t pid : found) {
    const auto stat = read_process_stat("/proc", pid);
    if (!stat || stat->is_dead() || pid == ::getpid()) continue;
    const bool tracker = stat->state == 'D' ? unknown_is_tracker : is_tracker("/proc", pid);
    strays.push_back({pid, stat->start_time, tracker});
  }
  return strays;
}

// Those that clean up after the others are left alone, and end by themselves then.
void kill_workers(const GuardDuties& duties) {
  if (duties.token.empty() && duties.cgroups.empty()) return;
  const milliseconds begin = boot_time();
  // Until nothing is found three times: a process may have forked while we looked, and one that is in the middle of
  // an exec shows no environment.
  milliseconds pause = kLook;
  for (int quiet = 0; quiet < 3 && boot_time() < begin + kTimes.tracker;) {
    const auto strays = find_strays(duties, boot_time() < begin + kTimes.unknown);
    const bool others = std::any_of(strays.begin(), strays.end(), [](const Stray& stray) { return !stray.tracker; });
    for (const Stray& stray : strays) {
      if (!stray.tracker) signal_if_same("/proc", stray.pid, stray.start_time, SIGKILL);
    }
    quiet = strays.empty() ? quiet + 1 : 0;
    pause = others || strays.empty() ? kLook : std::min(pause * 2, kLongLook);
    std::this_thread::sleep_for(pause);
  }
  for (const Stray& stray : find_strays(duties, false)) {
    signal_if_same("/proc", stray.pid, stray.start_time, SIGKILL);
  }
  for (const auto& cgroup : duties.cgroups) kill_cgroup(cgroup);
}

// Sets the alarm; 0 switches it off. On CLOCK_BOOTTIME, so that it is due at once after a suspend.
void set_alarm(int alarm, long long at_ms) {
  itimerspec when = {};
  when.it_value.tv_sec = static_cast<time_t>(at_ms / 1000);
  when.it_value.tv_nsec = static_cast<long>(at_ms % 1000) * 1'000'000;
  ::timerfd_settime(alarm, TFD_TIMER_ABSTIME, &when, nullptr);
}

void close_from(int first) {
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0) == 0) return;
  for (int fd = first; fd < 65'536; ++fd) ::close(fd);  // kernels before 5.9, and sandboxes that do not know the call
}

// Without a timerfd (a sandbox) poll() looks now and then; -1 = it need not.
int poll_timeout_ms(int alarm, long long armed_ms) {
  constexpr long long kLongest = 500;
  if (alarm >= 0 || armed_ms == 0) return -1;
  return static_cast<int>(std::clamp(armed_ms - static_cast<long long>(boot_time().count()), 0LL, kLongest));
}

}  // namespace

// The time may be put off while the alarm of the old one rings, and a guard that was stopped finds old alarms: what
// counts is what the shared memory says now, and whose workers it means.
void Guard::ring(int alarm, const Shared& shared, const GuardDuties& duties) {
  const long long generation = shared.generation.load();
  const long long kill_at_ms = shared.kill_at_ms.load();
  const bool whole = shared.generation.load() == generation;
  if (kill_at_ms == 0 && whole) return;
  if (!whole || duties.generation < generation || kill_at_ms > boot_time().count()) {
    // Not yet; or orders are under way that say who the workers are.
    set_alarm(alarm, std::max(kill_at_ms, static_cast<long long>(boot_time().count()) + 1));
  } else if (duties.generation == generation) {
    kill_workers(duties);
  }
}

// Nothing may be thrown into the frames of the launcher that lie below: there everything would be done twice.
void Guard::live(int pipe, const Shared& shared, const GuardDuties& duties) noexcept {
  try {
    keep_guard(pipe, shared, duties);
  } catch (...) {  // no memory: the launcher starts another
  }
  ::_exit(1);
}

void Guard::keep_guard(int pipe, const Shared& shared, GuardDuties duties) {
  ::setsid();
  ::prctl(PR_SET_NAME, "ddprun-guard");
  // Nothing of the user's may be held: `ddprun ... | tee` must see the end when the launcher goes. Our pipe first: then
  // there is room for the null device whatever the limit on descriptors. Without that device our pipe has to do, from
  // which one can only read.
  if (pipe != 3) ::dup2(pipe, 3);
  close_from(4);
  const int null_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null_fd >= 0 ? null_fd : 3, fd);
  if (null_fd > 3) ::close(null_fd);
  if (::chdir("/") != 0) ::_exit(1);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  for (int n = 1; n < NSIG; ++n) ::sigaction(n, &ignore, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  const int alarm = ::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  long long armed = shared.kill_at_ms.load();
  set_alarm(alarm, armed);
  std::string pending;
  char buffer[4096];
  while (true) {
    pollfd ready[2] = {{3, POLLIN, 0}, {alarm, POLLIN, 0}};
    const int count = ::poll(ready, alarm < 0 ? 1 : 2, poll_timeout_ms(alarm, armed));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    if (ready[0].revents != 0) {  // orders first: they may set the alarm anew
      const ssize_t n = ::read(3, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      pending.append(buffer, static_cast<std::size_t>(n));
      for (std::size_t end; (end = pending.find('\0')) != std::string::npos; pending.erase(0, end + 1)) {
        if (end > 0) take(duties, pending[0], pending.substr(1, end - 1));
      }
      if (const long long wanted = shared.kill_at_ms.load(); wanted != armed) {
        armed = wanted;
        set_alarm(alarm, armed);
      }
    } else if (ready[1].revents != 0 || count == 0) {
      std::uint64_t times = 0;
      if (alarm >= 0 && ::read(alarm, &times, sizeof times) != sizeof times) continue;
      const bool due = armed <= boot_time().count();
      armed = shared.kill_at_ms.load();
      ring(alarm, shared, duties);
      if (alarm < 0 && due && armed <= boot_time().count()) armed = 0;  // done
    }
  }
  kill_workers(duties);
  for (const auto& folder : duties.folders) remove_tree(folder);
  for (const auto& cgroup : duties.cgroups) remove_cgroup_folder(cgroup);
  ::_exit(0);
}

std::chrono::milliseconds boot_time() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return milliseconds(static_cast<long long>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000);
}

void Guard::Unmap::operator()(Shared* shared) const { ::munmap(shared, sizeof *shared); }

Result<std::shared_ptr<Guard>> Guard::start() {
  static_assert(std::atomic<long long>::is_always_lock_free);
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return start_error(errno, "memory for the guard process");
  std::shared_ptr<Guard> guard(new Guard(make_job_token(), std::unique_ptr<Shared, Unmap>(new (memory) Shared)));
  if (auto forked = guard->fork_it(); !forked) return std::move(forked).error();
  return guard;
}

// The child has a copy of all that was told so far. Other threads may run here: it only uses what is the main thread's
// own, and memory, which the C library's fork() keeps usable.
Result<void> Guard::fork_it() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return start_error(errno, "pipe for the guard process");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  pid_t pid = -1;
  int error = 0;
  {
    const BlockedSignals blocked;  // no handler may run in the child: until it ignores everything
    pid = ::fork();
    error = errno;
    if (pid == 0) live(read_end.get(), *shared_, duties_);
  }
  if (pid < 0) return start_error(error, "fork of the guard process");
  ::fcntl(write_end.get(), F_SETFL, O_NONBLOCK);
  pid_ = pid;
  pipe_ = std::move(write_end);
  return {};
}

void Guard::look_after() {
  if (pid_ <= 0 || ::waitpid(pid_, nullptr, WNOHANG) != pid_) return;
  pid_ = -1;
  replace("was killed");
}

void Guard::replace(const char* why) {
  pipe_.reset();
  if (replaced_++ >= kMaxReplacements) return;
  const auto forked = fork_it();
  if (!forked) {
    log_error(
        "the guard process {} and cannot be started again ({}): if this launcher is killed, helpers of its workers "
        "may be left",
        why, forked.error().message());
  } else if (replaced_ == 1) {
    log_warning("the guard process {}: started again", why);
  } else if (replaced_ == kMaxReplacements) {
    log_error("the guard process {} for the {}th time: it is not started again after the next", why, replaced_);
  }
}

Guard::~Guard() {
  pipe_.reset();  // its end of file is its order to go
  if (pid_ <= 0) return;
  if (reap_within(pid_, milliseconds(5'000))) return;
  signal_process(pid_, SIGKILL);  // stopped by someone
  reap_within(pid_, milliseconds(1'000));
}

void Guard::tell(char verb, const std::string& argument) {
  take(duties_, verb, argument);
  if (!pipe_) return;
  std::string message;
  message += verb;
  message += argument;
  message += '\0';
  // At most PIPE_BUF, so it is whole. A guard that someone killed is no reason to fail: EPIPE is let pass (the
  // launcher ignores SIGPIPE), look_after() starts another.
  ssize_t n;
  do n = ::write(pipe_.get(), message.data(), message.size());
  while (n < 0 && errno == EINTR);
  if (n >= 0 || errno != EAGAIN) return;
  // It was stopped by someone and has not read for long. It must not stop us.
  signal_process(pid_, SIGKILL);
  reap_within(pid_, milliseconds(200));
  pid_ = -1;
  replace("did not run");
}

std::string Guard::expect_workers() {
  shared_->kill_at_ms.store(0);  // was for those before
  const long long generation = shared_->generation.fetch_add(1) + 1;
  const std::string token = token_ + "." + std::to_string(generation);
  tell('w', std::to_string(generation) + " " + token);
  return token;
}

void Guard::no_workers_left() { tell('W', ""); }
void Guard::add_session(pid_t leader) {
  const auto stat = read_process_stat("/proc", leader);
  tell('s', std::to_string(leader) + " " + std::to_string(stat ? stat->start_time : 0));
}
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
  const long long before = shared_->kill_at_ms.exchange(at_ms);
  // A time that is put off need not be told: the guard looks again when the old one, which is to come yet, has come.
  if (before == at_ms || (before > now.count() && at_ms >= before)) return;
  // A guard that someone stopped must not stop us when the pipe is full: it looks after whatever it reads.
  pollfd room{pipe_.get(), POLLOUT, 0};
  if (::poll(&room, 1, 0) == 1) tell('l', "");
}

}  // namespace ddprun::launcher
