#include "common/stderr_writer.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "common/blocked_signals.h"
#include "common/shared_out.h"

namespace ddprun {
namespace {

// While it lives a write to a pipe without a reader raises no SIGPIPE in this thread, whatever the process does about
// that signal.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_only_);
    sigaddset(&pipe_only_, SIGPIPE);
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_only_, &before_);
  }
  ~NoSigpipe() {
    const timespec none{0, 0};
    while (!was_pending_ && sigtimedwait(&pipe_only_, nullptr, &none) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_only_, before_;
  bool was_pending_ = false;
};

// Whole lines where one write takes them, so that others on the same pipe do not tear them.
std::string_view next_chunk(std::string_view text) {
  if (text.size() <= PIPE_BUF) return text;
  const std::size_t newline = text.rfind('\n', PIPE_BUF - 1);
  return text.substr(0, newline == std::string_view::npos ? PIPE_BUF : newline + 1);
}

void write_bounded(int fd, std::string_view text) {
  const NoSigpipe quiet;
  const SharedOut way(fd);
  while (!text.empty()) {
    pollfd room{fd, POLLOUT, 0};
    if (way.kind() != SharedOut::Kind::direct && ::poll(&room, 1, 1000) == 0) return;
    const ssize_t n = way.put(next_chunk(text));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace

struct StderrWriter::Shared {
  const int fd;
  const std::function<std::string(std::uint64_t)> lost_line;
  const pid_t owner = ::getpid();

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::string waiting;
  std::uint64_t lost_lines = 0;
  std::uint64_t progress = 0;  // bytes that the thread got rid of
  bool thread_runs = false;

  Shared(int descriptor, std::function<std::string(std::uint64_t)> say_lost)
      : fd(descriptor), lost_line(std::move(say_lost)) {}

  // What goes out at once; the rest is returned. Nobody else's words may stand in front.
  std::string_view try_now(std::string_view text) const {
    const NoSigpipe quiet;
    const SharedOut way(fd);
    while (!text.empty() && way.kind() != SharedOut::Kind::may_block) {
      const ssize_t n = way.put(way.kind() == SharedOut::Kind::direct ? text : next_chunk(text));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return text;
      if (n <= 0) return {};  // closed, no reader, full disk: there is nobody to tell
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    return text;
  }

  void take_back() {  // with the lock
    if (lost_lines == 0 || waiting.size() > kMaxWaiting / 2) return;
    waiting += lost_line(std::exchange(lost_lines, 0));
  }

  using TimePoint = std::chrono::steady_clock::time_point;

  // Until nothing waits any more or `end` comes; nullopt: the thread, that has no end.
  void drain(std::unique_lock<std::mutex>& lock, std::optional<TimePoint> end) {
    while (true) {
      take_back();
      if (waiting.empty()) return;
      const std::string chunk(next_chunk(waiting));
      lock.unlock();
      pollfd room{fd, POLLOUT, 0};
      int timeout_ms = -1;
      if (end) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(*end - std::chrono::steady_clock::now());
        timeout_ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
      }
      const int ready = ::poll(&room, 1, timeout_ms);
      if (end && (ready == 0 || std::chrono::steady_clock::now() >= *end)) {
        lock.lock();
        return;
      }
      const NoSigpipe quiet;
      const SharedOut way(fd);
      const ssize_t n = way.put(chunk);
      const int error = n < 0 ? errno : 0;
      lock.lock();
      if (n > 0) {
        waiting.erase(0, static_cast<std::size_t>(n));
        progress += static_cast<std::size_t>(n);
        changed.notify_all();
      } else if (error == EAGAIN) {
        changed.wait_for(lock, std::chrono::milliseconds(20));  // others were faster, or poll() promises too much
      } else if (error != EINTR) {
        waiting.clear();  // nobody reads any more
        lost_lines = 0;
      }
    }
  }

  // With the lock. False: there is no room for a thread (ulimit -u).
  static bool start_thread(const std::shared_ptr<Shared>& shared) {
    const BlockedSignals blocked;
    try {
      std::thread([shared] {
        std::unique_lock lock(shared->mutex);
        shared->drain(lock, std::nullopt);
        shared->thread_runs = false;
        shared->changed.notify_all();
      }).detach();
      shared->thread_runs = true;
    } catch (const std::system_error&) {
      return false;
    }
    return true;
  }
};

StderrWriter::StderrWriter(int fd, std::function<std::string(std::uint64_t lines)> lost_line)
    : shared_(std::make_shared<Shared>(fd, std::move(lost_line))) {}

void StderrWriter::write(std::string_view text, bool important) {
  Shared& s = *shared_;
  if (::getpid() != s.owner) return write_bounded(s.fd, text);
  const std::lock_guard lock(s.mutex);
  if (s.waiting.empty() && s.lost_lines == 0) {
    text = s.try_now(text);
    if (text.empty()) return;
  }
  const std::size_t room = important ? 2 * kMaxWaiting : kMaxWaiting;
  if ((s.lost_lines > 0 && !important) || s.waiting.size() + text.size() > room) {
    s.lost_lines += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  } else {
    s.waiting += text;
  }
  if (!s.thread_runs) Shared::start_thread(shared_);  // where that fails the next line tries again
}

bool StderrWriter::flush(std::chrono::milliseconds limit, std::chrono::milliseconds idle_limit) {
  Shared& s = *shared_;
  if (::getpid() != s.owner) return true;
  std::unique_lock lock(s.mutex);
  const auto end = std::chrono::steady_clock::now() + limit;
  if (!s.thread_runs && !s.waiting.empty() && !Shared::start_thread(shared_)) {
    // The last words, and nobody else to say them: we wait as long as the caller would have waited for the thread.
    for (std::uint64_t before = s.progress + 1; before != s.progress && !s.waiting.empty();) {
      before = s.progress;
      s.drain(lock, std::min(end, std::chrono::steady_clock::now() + idle_limit));
      if (std::chrono::steady_clock::now() >= end) break;
    }
    return s.waiting.empty();
  }
  while (s.thread_runs) {
    const std::uint64_t before = s.progress;
    const auto until = std::min(end, std::chrono::steady_clock::now() + idle_limit);
    const bool moved =
        s.changed.wait_until(lock, until, [&s, before] { return !s.thread_runs || s.progress != before; });
    if (!moved || std::chrono::steady_clock::now() >= end) return !s.thread_runs;
  }
  return s.waiting.empty();
}

}  // namespace ddprun
