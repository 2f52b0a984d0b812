#include "common/inherited_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "common/standard_fds.h"

namespace ddprun {
namespace {

// O_NONBLOCK belongs to the open file, which others may share (a shell, another program's event loop): opened once
// more, the flag is ours alone. A socket cannot be; whoever put it on our standard streams cannot mean our half lines.
void make_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) == 0) return;
  struct stat info {};
  if (::fstat(fd, &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) return;  // it means nothing there
  if (S_ISSOCK(info.st_mode)) {
    ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    return;
  }
  const std::string self = fmt::format("/proc/self/fd/{}", fd);
  // Not blocking at first: a pipe whose reader is gone would keep us here.
  const int own = ::open(self.c_str(), (flags & (O_ACCMODE | O_APPEND)) | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (own < 0) return;
  ::fcntl(own, F_SETFL, flags & ~O_NONBLOCK);
  ::dup2(own, fd);  // without close-on-exec
  ::close(own);
}

}  // namespace

InheritedState settle_inherited_state() {
  open_standard_fds();
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) make_blocking(fd);

  ::signal(SIGCHLD, SIG_DFL);  // ignored, it would break every wait
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  const itimerval off{};
  ::setitimer(ITIMER_VIRTUAL, &off, nullptr);
  ::setitimer(ITIMER_PROF, &off, nullptr);

  InheritedState state;
  itimerval alarm{};
  if (::getitimer(ITIMER_REAL, &alarm) == 0) {
    state.alarm = std::chrono::milliseconds(alarm.it_value.tv_sec * 1000 + alarm.it_value.tv_usec / 1000);
    if (state.alarm.count() == 0 && alarm.it_value.tv_usec > 0) state.alarm = std::chrono::milliseconds(1);
  }
  std::array<char, PATH_MAX> here{};
  state.no_working_directory = ::getcwd(here.data(), here.size()) == nullptr && errno == ENOENT;
  return state;
}

}  // namespace ddprun
