#include "launcher/hosts/pipes.h"

#include <fcntl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ddprun::launcher::hosts {

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return Error::from_errno(errno, "pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0) ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

bool read_some(int fd, std::string& into, std::size_t limit) {
  const std::size_t before = into.size();
  into.resize(before + limit);
  ssize_t n = -1;
  do {
    n = ::read(fd, into.data() + before, limit);
  } while (n < 0 && errno == EINTR);
  into.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return n > 0 || (n < 0 && errno == EAGAIN);
}

bool write_some(int fd, std::string& bytes) {
  std::size_t done = 0;
  bool open = true;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      open = errno == EAGAIN;
      break;
    }
    done += static_cast<std::size_t>(n);
  }
  bytes.erase(0, done);
  return open;
}

Result<SignalPipe> SignalPipe::open(const std::vector<int>& numbers, const InheritedSignals& inherited) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  for (const int number : numbers) {
    if (!inherited.ignored(number)) ::sigaddset(&set, number);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return Error::from_errno(errno, "signalfd");
  return SignalPipe(std::move(fd));
}

std::vector<int> SignalPipe::take() {
  std::vector<int> out;
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGCHLD) out.push_back(static_cast<int>(info.ssi_signo));
  }
  return out;
}

}  // namespace ddprun::launcher::hosts
