#include "launcher/process.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "launcher/kill_tree.h"
#include "launcher/limits.h"

namespace asio = boost::asio;

namespace ddprun::launcher {
namespace {

// Gives up after a second: SIGKILL does not reach a process that hangs in the kernel.
void kill_and_reap(pid_t pid) {
  signal_group(pid, SIGKILL);
  signal_process(pid, SIGKILL);
  for (int i = 0; i < 1000 && ::waitpid(pid, nullptr, WNOHANG) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class AdoptedChild final : public ChildProcess {
 public:
  // Takes the descriptor, a pidfd of `pid`; -1 = there is none.
  AdoptedChild(const asio::any_io_executor& executor, pid_t pid, UniqueFd pidfd) : pid_(pid) {
    if (!pidfd) return;
    watched_.emplace(executor, pidfd.get());
    pidfd.release();
  }

  ~AdoptedChild() override {
    if (ours_) kill_and_reap(pid_);
  }

  pid_t pid() const override { return pid_; }
  bool is_watched() const override { return watched_.has_value(); }

  void when_ended(std::function<void()> handler) override {
    if (!watched_) return;
    watched_->async_wait(asio::posix::descriptor_base::wait_read,
                         [handler = std::move(handler)](const boost::system::error_code& ec) {
                           if (!ec) handler();
                         });
  }

  ExitStatus reap() override {
    int wait_status = 0;
    while (::waitpid(pid_, &wait_status, 0) < 0 && errno == EINTR) {
    }
    ours_ = false;
    return ExitStatus::from_wait_status(wait_status);
  }

  void abandon() override {
    watched_.reset();
    ours_ = false;
  }

 private:
  pid_t pid_;
  bool ours_ = true;  // not reaped, not let go of
  std::optional<asio::posix::stream_descriptor> watched_;
};

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::adopt(const asio::any_io_executor& executor, pid_t pid) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const int error = errno;
  if (!pidfd && error != ENOSYS && error != EPERM) {
    kill_and_reap(pid);
    return start_error(error, "cannot watch process " + std::to_string(pid));
  }
  try {
    return std::unique_ptr<ChildProcess>(std::make_unique<AdoptedChild>(executor, pid, std::move(pidfd)));
  } catch (const boost::system::system_error& e) {  // epoll has no room for one more
    kill_and_reap(pid);
    return start_error(e.code().value(), "cannot watch process " + std::to_string(pid));
  }
}

}  // namespace ddprun::launcher
