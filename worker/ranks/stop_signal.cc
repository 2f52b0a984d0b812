#include "worker/ranks/stop_signal.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

namespace ddprun::trainer {
namespace {

constexpr std::array<int, 4> kSignals{SIGTERM, SIGINT, SIGUSR1, SIGUSR2};

sigset_t signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kSignals) {
    // One that was ignored when we started (a script's `trainer &`: SIGINT) is not for us; a descriptor would get it.
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

Result<std::unique_ptr<StopSignal>> StopSignal::create() {
  const sigset_t set = signal_set();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return Error::from_errno(errno, "signalfd");
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake) return Error::from_errno(errno, "eventfd");
  return std::unique_ptr<StopSignal>(new StopSignal(std::move(signals), std::move(wake)));
}

StopSignal::StopSignal(UniqueFd signals, UniqueFd wake) : signals_(std::move(signals)), wake_(std::move(wake)) {
  thread_ = std::thread([this] { watch(); });
  ::pthread_setname_np(thread_.native_handle(), "signals");
}

StopSignal::~StopSignal() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void StopSignal::watch() {
  for (;;) {
    std::array<pollfd, 2> fds{{{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    // Waits for the process's whole life on purpose: the destructor ends it.
    if (::poll(fds.data(), fds.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (fds[1].revents != 0) return;
    signalfd_siginfo info = {};
    if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGUSR2) {
      save_ = true;
      continue;
    }
    if (armed_) {
      int none = 0;
      signal_.compare_exchange_strong(none, signal);
      continue;
    }
    // As if it had never been blocked: the default action ends the process.
    ::signal(signal, SIG_DFL);
    const sigset_t set = signal_set();
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    ::raise(signal);
  }
}

}  // namespace ddprun::trainer
