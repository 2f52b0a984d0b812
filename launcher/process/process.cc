#include "launcher/process/process.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/process/v2/process.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <optional>

#include "launcher/process/kill_tree.h"
#include "launcher/process/limits.h"
#include "launcher/process/reap.h"

namespace asio = boost::asio;

namespace ddprun::launcher {
namespace {

// Gives up after a second: SIGKILL does not reach a process that hangs in the kernel.
void kill_and_reap(pid_t pid) {
  signal_group(pid, SIGKILL);
  signal_process(pid, SIGKILL);
  reap_within(pid, std::chrono::milliseconds(1'000));
}

// Boost.Process has the child: its status, and that it goes with its owner. It knows of an end only by taking the
// status; we want to look at the zombie before that, so the end is watched with a pidfd of our own.
class AdoptedChild final : public ChildProcess {
 public:
  // Takes both descriptors, each a pidfd of `pid`. (No dup(): Asio leaves it to close() to take a descriptor out of
  // epoll, which a duplicate would keep in there.)
  AdoptedChild(const asio::any_io_executor& executor, pid_t pid, UniqueFd watched, UniqueFd handle) : pid_(pid) {
    watched_.emplace(executor, watched.get());
    watched.release();
    process_.emplace(executor, pid, handle.get());
    handle.release();
  }

  ~AdoptedChild() override {
    if (!process_) return;
    kill_and_reap(pid_);  // the whole group, and bounded: process_ knows the leader, and waits for ever
    process_->detach();
  }

  pid_t pid() const override { return pid_; }
  bool is_watched() const override { return true; }

  void when_ended(std::function<void()> handler) override {
    watched_->async_wait(asio::posix::descriptor_base::wait_read,
                         [handler = std::move(handler)](const boost::system::error_code& ec) {
                           if (!ec) handler();
                         });
  }

  ExitStatus reap() override {
    boost::system::error_code ec;
    process_->wait(ec);
    const int wait_status = process_->native_exit_code();
    let_go();  // now: another child can have that id from here on
    return ExitStatus::from_wait_status(wait_status);
  }

  void abandon() override {
    watched_.reset();
    let_go();
  }

 private:
  void let_go() {
    process_->detach();  // else its destructor would kill and wait
    process_.reset();
  }

  pid_t pid_;
  std::optional<asio::posix::stream_descriptor> watched_;
  std::optional<boost::process::v2::process> process_;  // none: reaped, or let go of
};

// Where there are no pidfds, without which Boost.Process does not work here either.
class UnwatchedChild final : public ChildProcess {
 public:
  explicit UnwatchedChild(pid_t pid) : pid_(pid) {}
  ~UnwatchedChild() override {
    if (ours_) kill_and_reap(pid_);
  }

  pid_t pid() const override { return pid_; }
  bool is_watched() const override { return false; }
  void when_ended(std::function<void()>) override {}

  ExitStatus reap() override {
    int wait_status = 0;
    while (::waitpid(pid_, &wait_status, 0) < 0 && errno == EINTR) {
    }
    ours_ = false;
    return ExitStatus::from_wait_status(wait_status);
  }

  void abandon() override { ours_ = false; }

 private:
  pid_t pid_;
  bool ours_ = true;  // not reaped, not let go of
};

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::adopt(const asio::any_io_executor& executor, pid_t pid) {
  const auto fail = [pid](int error) -> Error {
    kill_and_reap(pid);
    return start_error(error, "cannot watch process " + std::to_string(pid));
  };
  UniqueFd watched(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!watched && (errno == ENOSYS || errno == EPERM)) {
    return std::unique_ptr<ChildProcess>(std::make_unique<UnwatchedChild>(pid));
  }
  if (!watched) return fail(errno);
  UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!handle) return fail(errno);
  try {
    return std::unique_ptr<ChildProcess>(
        std::make_unique<AdoptedChild>(executor, pid, std::move(watched), std::move(handle)));
  } catch (const boost::system::system_error& e) {  // epoll has no room for one more
    return fail(e.code().value());
  }
}

}  // namespace ddprun::launcher
