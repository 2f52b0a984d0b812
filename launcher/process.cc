#include "launcher/process.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/process/v2/process.hpp>
#include <cerrno>
#include <exception>
#include <optional>

#include "launcher/kill_tree.h"

namespace asio = boost::asio;

namespace ddprun::launcher {
namespace {

class AdoptedChild final : public ChildProcess {
 public:
  // Takes both descriptors, each a pidfd of `pid`.
  AdoptedChild(const asio::any_io_executor& executor, pid_t pid, UniqueFd watched, UniqueFd handle)
      : pid_(pid), watched_(executor, watched.release()) {
    process_.emplace(executor, pid, handle.release());
  }

  ~AdoptedChild() override {
    if (process_) signal_group(pid_, SIGKILL);  // process_ kills and reaps only the leader
  }

  pid_t pid() const override { return pid_; }

  void when_ended(std::function<void()> handler) override {
    watched_.async_wait(asio::posix::descriptor_base::wait_read,
                        [handler = std::move(handler)](const boost::system::error_code& ec) {
                          if (!ec) handler();
                        });
  }

  ExitStatus reap() override {
    // The leader is still a zombie, so the group id is still ours and no recycled id can be hit.
    signal_group(pid_, SIGKILL);
    boost::system::error_code ec;
    process_->wait(ec);
    const int wait_status = process_->native_exit_code();
    process_.reset();  // its destructor waits for the same id again: now, before another child can have that id
    return ExitStatus::from_wait_status(wait_status);
  }

  void abandon() override {
    boost::system::error_code ignored;
    watched_.close(ignored);
    process_->detach();  // else its destructor would kill and wait
    process_.reset();
  }

 private:
  pid_t pid_;
  asio::posix::stream_descriptor watched_;
  std::optional<boost::process::v2::process> process_;
};

void kill_and_reap(pid_t pid) {
  signal_group(pid, SIGKILL);
  signal_process(pid, SIGKILL);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::adopt(const asio::any_io_executor& executor, pid_t pid) {
  // Two of their own, no dup(): Asio leaves it to close() to take a descriptor out of epoll, which a duplicate would
  // keep in there, with a pointer to what is long another's.
  UniqueFd watched(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!watched || !handle) {
    const int error = errno;
    kill_and_reap(pid);
    return Error::from_errno(error, "cannot watch process " + std::to_string(pid));
  }
  try {
    return std::unique_ptr<ChildProcess>(
        std::make_unique<AdoptedChild>(executor, pid, std::move(watched), std::move(handle)));
  } catch (const std::exception& e) {
    kill_and_reap(pid);
    return Error(Errc::system, "cannot watch process " + std::to_string(pid) + ": " + e.what());
  }
}

}  // namespace ddprun::launcher
