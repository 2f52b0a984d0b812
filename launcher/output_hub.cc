#include "launcher/output_hub.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "launcher/line_mixer.h"

namespace asio = boost::asio;

namespace ddprun::launcher {
namespace {

constexpr std::size_t kReadBytes = 256 * 1024;
constexpr std::size_t kConsoleBytes = 1024 * 1024;  // what waits for a console; more makes streams lag or pause
constexpr std::uint64_t kWakeId = ~0ULL;
constexpr std::uint64_t kConsoleId = ~0ULL - 2;  // and the next one

std::string error_text(int number) { return std::error_code(number, std::generic_category()).message(); }

// A destination of ours. Never blocks the thread where the kernel lets us avoid it.
struct Console {
  int fd = -1;
  UniqueFd own;               // the same pipe or terminal opened once more, so that O_NONBLOCK is ours alone
  bool never_blocks = false;  // a regular file or the like: written directly
  bool terminal = false;
  bool closed = false;  // the reader is gone
  int broken = 0;       // errno of another reason, not said yet
  bool armed = false;   // epoll waits for room
  std::string queue;
  std::size_t written = 0;  // of queue
  TimePoint last_progress;
  std::uint64_t lost_bytes = 0;
  std::optional<LineMixer> mixer;

  void open(int descriptor) {
    fd = descriptor;
    terminal = ::isatty(fd) == 1;
    mixer.emplace(terminal);
    struct stat status = {};
    if (::fstat(fd, &status) != 0) {
      closed = true;
      return;
    }
    if (S_ISFIFO(status.st_mode) || terminal) {
      const std::string self = "/proc/self/fd/" + std::to_string(fd);
      own.reset(::open(self.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    } else if (!S_ISSOCK(status.st_mode)) {
      never_blocks = true;
    }
  }
  int target() const { return own ? own.get() : fd; }
  std::size_t waiting() const { return queue.size() - written; }
  bool full() const { return waiting() >= kConsoleBytes; }

  // Writes what can be written without blocking.
  void flush(TimePoint now) {
    while (!closed && waiting() > 0) {
      std::size_t size = waiting();
      if (!own && !never_blocks) {
        // Not ours to make non-blocking. A write of at most PIPE_BUF after POLLOUT does not block.
        pollfd room{fd, POLLOUT, 0};
        if (::poll(&room, 1, 0) <= 0) break;
        size = std::min<std::size_t>(size, 4096);
      }
      const ssize_t n = ::write(target(), queue.data() + written, size);
      if (n < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) break;
        closed = true;  // EPIPE, EIO: nobody reads any more. The job goes on without its console.
        if (errno != EPIPE && errno != EIO) broken = errno;
        break;
      }
      written += static_cast<std::size_t>(n);
      last_progress = now;
    }
    if (closed) {
      lost_bytes += waiting();
      written = queue.size();
    }
    if (written == queue.size()) {
      queue.clear();
      written = 0;
      if (queue.capacity() > 4 * kConsoleBytes) queue.shrink_to_fit();
    } else if (written > kConsoleBytes) {
      queue.erase(0, written);
      written = 0;
    }
  }
};

struct Pump {
  OutputHub::Stream stream;
  int id = 0;
  int mixer_id = -1;
  Console* console = nullptr;
  std::string recent;
  std::string filter_held;
  std::uint64_t file_bytes = 0;   // of the current log file
  std::uint64_t shown_bytes = 0;  // of the current log file that the console has got
  bool file_broken = false;
  bool paused = false;     // not in epoll: the console is full and there is no file to go on with
  bool ended = false;      // the source is at its end
  bool finishing = false;  // finish() was called
  TimePoint source_limit;

  bool has_file() const { return static_cast<bool>(stream.file); }
  bool console_full() const { return console != nullptr && !console->closed && !has_file() && console->full(); }
  bool lagging() const { return console != nullptr && has_file() && shown_bytes < file_bytes; }
};

}  // namespace

class OutputHub::Impl : public std::enable_shared_from_this<OutputHub::Impl> {
 public:
  Impl(asio::any_io_executor executor, OutputPolicy policy, std::function<void(Ended)> on_ended,
       std::function<void(std::string)> on_problem)
      : executor_(std::move(executor)),
        policy_(std::move(policy)),
        on_ended_(std::move(on_ended)),
        on_problem_(std::move(on_problem)),
        patience_(policy_.console_patience) {
    consoles_[0].open(policy_.console_stdout);
    consoles_[1].open(policy_.console_stderr);
  }

  const Console& console(Target target) const { return consoles_[target == Target::console_stdout ? 0 : 1]; }

  int add(Stream stream) {
    const int id = next_id_++;
    {
      const std::lock_guard lock(mutex_);
      ++open_streams_;
    }
    auto pump = std::make_unique<Pump>();
    pump->id = id;
    pump->stream = std::move(stream);
    command([this, raw = pump.release()] { take(std::unique_ptr<Pump>(raw)); });
    return id;
  }

  void finish(int id, std::chrono::milliseconds limit) {
    command([this, id, limit] {
      const auto found = pumps_.find(id);
      if (found == pumps_.end()) return;
      found->second->finishing = true;
      found->second->source_limit = SteadyClock::now() + limit;
    });
  }

  void set_patience(std::chrono::milliseconds patience) {
    if (!thread_.joinable()) {
      patience_ = patience;
    } else {
      command([this, patience] { patience_ = patience; });
    }
  }

  void copy_window_size() {
    if (!thread_.joinable()) return;
    command([this] {
      for (auto& [id, pump] : pumps_) {
        winsize size = {};
        if (pump->console != nullptr && pump->console->terminal && ::isatty(pump->stream.source.get()) == 1 &&
            ::ioctl(pump->console->fd, TIOCGWINSZ, &size) == 0) {
          ::ioctl(pump->stream.source.get(), TIOCSWINSZ, &size);
        }
      }
    });
  }

  bool wait_until_ended(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return all_ended_.wait_for(lock, limit, [this] { return open_streams_ == 0; });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      orphaned_ = true;
    }
    if (!thread_.joinable()) return;
    wake();
    thread_.join();
    for (auto& run : commands_) run();  // frees what was never taken
    commands_.clear();
    pumps_.clear();
  }

 private:
  void command(std::function<void()> run) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(run));
    }
    if (!thread_.joinable()) {
      wake_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
      watch(wake_fd_.get(), EPOLLIN, kWakeId);
      buffer_.resize(kReadBytes);
      // Signals are the main thread's business.
      sigset_t all, before;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_BLOCK, &all, &before);
      thread_ = std::thread([this] { live(); });
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    } else {
      wake();
    }
  }

  void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_fd_.get(), &one, sizeof one);
  }

  void watch(int fd, std::uint32_t events, std::uint64_t id) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = id;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
  void unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

  // --- from here on: the hub's thread ---

  void live() {
    while (true) {
      std::vector<std::function<void()>> todo;
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        todo.swap(commands_);
      }
      for (auto& run : todo) run();
      const TimePoint now = SteadyClock::now();
      const int timeout_ms = serve(now);
      epoll_event events[64];
      const int n = ::epoll_wait(epoll_.get(), events, 64, timeout_ms);
      for (int i = 0; i < n; ++i) handle(events[i]);
    }
  }

  void handle(const epoll_event& event) {
    if (event.data.u64 == kWakeId) {
      std::uint64_t count;
      [[maybe_unused]] const ssize_t n = ::read(wake_fd_.get(), &count, sizeof count);
      return;
    }
    if (event.data.u64 >= kConsoleId) return;  // serve() flushes
    const auto found = pumps_.find(static_cast<int>(event.data.u64));
    if (found != pumps_.end()) read_some(*found->second);
  }

  void take(std::unique_ptr<Pump> pump) {
    if (pump->stream.target != Target::none) {
      pump->console = &consoles_[pump->stream.target == Target::console_stdout ? 0 : 1];
      pump->mixer_id = pump->console->mixer->add(pump->stream.prefix);
    }
    watch(pump->stream.source.get(), EPOLLIN, static_cast<std::uint64_t>(pump->id));
    pumps_.emplace(pump->id, std::move(pump));
  }

  // One read; level-triggered, so that a loud stream does not starve the others. False: nothing there now.
  bool read_some(Pump& pump) {
    if (pump.ended || pump.paused) return false;
    const ssize_t n = ::read(pump.stream.source.get(), buffer_.data(), buffer_.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
    if (n <= 0) {  // EIO: all have closed the pty
      end_source(pump);
      return false;
    }
    const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(n));
    remember(pump, bytes);
    if (pump.stream.filter) filter(pump, bytes);
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::string_view piece = rest.substr(0, next_piece(pump, rest));
      rest.remove_prefix(piece.size());
      deliver(pump, piece);
    }
    return true;
  }

  // How much of `bytes` goes into one file: whole lines up to --log-max-size; a longer line is not cut.
  std::size_t next_piece(const Pump& pump, std::string_view bytes) const {
    const std::uint64_t limit = policy_.log_max_size_bytes;
    if (limit == 0 || !pump.has_file()) return bytes.size();
    const std::uint64_t room = limit > pump.file_bytes ? limit - pump.file_bytes : 0;
    if (bytes.size() <= room) return bytes.size();
    for (const std::uint64_t span : {room, limit}) {
      const auto cut = bytes.substr(0, span).rfind('\n');
      if (cut != std::string_view::npos) return cut + 1;
    }
    const auto line_end = bytes.find('\n');
    return line_end == std::string_view::npos ? bytes.size() : line_end + 1;
  }

  void deliver(Pump& pump, std::string_view bytes) {
    const bool was_lagging = pump.lagging();
    const bool in_file = pump.has_file() && append(pump, bytes);
    if (pump.console == nullptr) return;
    if (pump.console->closed) {
      pump.console->lost_bytes += bytes.size();
      pump.shown_bytes = pump.file_bytes;
      return;
    }
    if (in_file && (was_lagging || pump.console->full())) return;  // later, from the file
    show(pump, bytes);
    if (in_file) pump.shown_bytes = pump.file_bytes;
  }

  void end_source(Pump& pump) {
    if (pump.ended) return;
    if (!pump.paused) unwatch(pump.stream.source.get());
    pump.ended = true;
    if (pump.stream.filter && !pump.filter_held.empty()) filter(pump, "\n");
    pump.stream.source.reset();
  }

  void remember(Pump& pump, std::string_view bytes) {
    if (bytes.size() > kRecentBytes) bytes.remove_prefix(bytes.size() - kRecentBytes);
    pump.recent += bytes;
    if (pump.recent.size() > 2 * kRecentBytes) pump.recent.erase(0, pump.recent.size() - kRecentBytes);
  }

  void show(Pump& pump, std::string_view bytes) {
    pump.console->mixer->feed(pump.mixer_id, bytes, SteadyClock::now(), pump.console->queue);
  }

  void problem(std::string sentence) {
    const std::lock_guard lock(mutex_);
    if (orphaned_) return;
    asio::post(executor_, [self = shared_from_this(), sentence = std::move(sentence)] {
      if (!self->orphaned_) self->on_problem_(sentence);
    });
  }

  bool append(Pump& pump, std::string_view bytes) {
    if (pump.file_broken) return false;
    if (policy_.log_max_size_bytes > 0 && pump.file_bytes > 0 &&
        pump.file_bytes + bytes.size() > policy_.log_max_size_bytes) {
      rotate(pump);
    }
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::write(pump.stream.file.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0) {
        if (errno == EINTR) continue;
        const int error = errno;
        problem("cannot write " + pump.stream.path + ": " + error_text(error) + "; the rest of " + pump.stream.name +
                (pump.console != nullptr ? " goes to the console only" : " is lost"));
        pump.file_broken = true;
        pump.file_bytes += done;
        // What did get into the file is shown from there; the rest of this piece has no other way.
        if (pump.console != nullptr && !pump.console->closed) {
          catch_up(pump, true);
          show(pump, bytes.substr(done));
        }
        pump.shown_bytes = pump.file_bytes;
        return true;  // as far as it can be, it is dealt with
      }
      done += static_cast<std::size_t>(n);
    }
    pump.file_bytes += bytes.size();
    return true;
  }

  void rotate(Pump& pump) {
    if (pump.lagging()) catch_up(pump, true);  // bounded: one file's size, and it is the last chance to show it
    const std::string& path = pump.stream.path;
    const auto numbered = [&path](int n) { return path + "." + std::to_string(n); };
    ::unlink(numbered(policy_.log_keep).c_str());
    for (int n = policy_.log_keep - 1; n >= 1; --n) ::rename(numbered(n).c_str(), numbered(n + 1).c_str());
    if (policy_.log_keep >= 1) {
      ::rename(path.c_str(), numbered(1).c_str());
    } else {
      ::unlink(path.c_str());
    }
    UniqueFd next(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!next) return;  // go on in the old one; append() tells if that does not work either
    pump.stream.file = std::move(next);
    pump.file_bytes = pump.shown_bytes = 0;
  }

  // Shows from the file what the console has not got yet; `all`: whatever the console's queue says.
  void catch_up(Pump& pump, bool all) {
    while (pump.lagging() && (all || !pump.console->full())) {
      const std::size_t want = std::min<std::uint64_t>(buffer2_.size(), pump.file_bytes - pump.shown_bytes);
      const ssize_t n = ::pread(pump.stream.file.get(), buffer2_.data(), want, static_cast<off_t>(pump.shown_bytes));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {  // someone truncated it
        pump.shown_bytes = pump.file_bytes;
        return;
      }
      show(pump, std::string_view(buffer2_.data(), static_cast<std::size_t>(n)));
      pump.shown_bytes += static_cast<std::uint64_t>(n);
    }
  }

  void filter(Pump& pump, std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      if (end == std::string_view::npos) {
        if (pump.filter_held.size() < LineMixer::kMaxHeld) pump.filter_held += bytes;
        return;
      }
      pump.filter_held += bytes.substr(0, end + 1);
      const std::string line = pump.stream.prefix + pump.filter_held;
      pump.filter_held.clear();
      bytes.remove_prefix(end + 1);
      const auto& needles = pump.stream.filter->needles;
      if (std::any_of(needles.begin(), needles.end(),
                      [&line](const std::string& needle) { return line.find(needle) != std::string::npos; })) {
        [[maybe_unused]] const ssize_t n = ::write(pump.stream.filter->file.get(), line.data(), line.size());
      }
    }
  }

  void pause(Pump& pump, bool on) {
    if (pump.paused == on || pump.ended) return;
    pump.paused = on;
    if (on) {
      unwatch(pump.stream.source.get());
    } else {
      watch(pump.stream.source.get(), EPOLLIN, static_cast<std::uint64_t>(pump.id));
    }
  }

  // Everything but reading: consoles, lag, ends. Returns how long epoll may wait.
  int serve(TimePoint now) {
    std::optional<TimePoint> next;
    const auto at = [&next](TimePoint when) { next = next ? std::min(*next, when) : when; };

    for (Console& console : consoles_) {
      if (console.waiting() == 0) console.last_progress = now;
      console.mixer->flush_idle(now, console.queue);
      console.flush(now);
    }
    for (auto& [id, pump] : pumps_) {
      Console* const console = pump->console;
      if (console == nullptr) continue;
      if (console->closed) pump->shown_bytes = pump->file_bytes;
      if (pump->lagging()) catch_up(*pump, false);
      // Without a (working) file the worker itself has to wait, as it would on a stopped terminal.
      const bool only_console = !pump->has_file() || pump->file_broken;
      pause(*pump, only_console && console->full() && !console->closed);
    }
    for (Console& console : consoles_) console.flush(now);
    for (auto& [id, pump] : pumps_) {
      // The console took so much that there is room again, and no event will say so.
      if ((pump->lagging() || pump->paused) && !pump->console->full()) at(now);
    }

    std::vector<int> done;
    for (auto& [id, pump] : pumps_) {
      if (!pump->finishing) continue;
      if (!pump->ended) {
        if (now >= pump->source_limit && !pump->paused) {
          while (read_some(*pump) && !pump->console_full()) {
          }
          if (!pump->console_full()) end_source(*pump);
        }
        if (!pump->ended) at(std::max(pump->source_limit, now + std::chrono::milliseconds(pump->paused ? 50 : 1)));
      }
      if (pump->ended && !pump->lagging()) {
        if (pump->mixer_id >= 0) {
          pump->console->mixer->finish(pump->mixer_id, pump->console->queue);
          pump->mixer_id = -1;
          pump->console->flush(now);
        }
        if (pump->console == nullptr || pump->console->waiting() == 0) done.push_back(id);
      }
    }
    if (const int error = std::exchange(consoles_[0].broken, 0); error != 0) {
      problem("standard output: " + error_text(error) + ": what workers print from here on is not shown there");
    }
    for (std::size_t i = 0; i < 2; ++i) {
      Console& console = consoles_[i];
      const bool want = console.waiting() > 0;
      if (want && finishing_on(console)) {
        if (now >= console.last_progress + patience_) {
          give_up(console);
          at(now);
        } else {
          at(console.last_progress + patience_);
        }
      }
      if (want && !console.armed) {
        watch(console.target(), EPOLLOUT, kConsoleId + i);
        console.armed = true;
      } else if (!want && console.armed) {
        unwatch(console.target());
        console.armed = false;
      }
      if (const auto flush = console.mixer->next_flush()) at(*flush);
    }
    for (const int id : done) {
      Ended ended;
      ended.id = id;
      ended.recent = std::move(pumps_.at(id)->recent);
      pumps_.erase(id);
      const std::lock_guard lock(mutex_);
      if (--open_streams_ == 0) all_ended_.notify_all();
      if (orphaned_) continue;
      asio::post(executor_, [self = shared_from_this(), ended = std::move(ended)]() mutable {
        if (!self->orphaned_) self->on_ended_(std::move(ended));
      });
    }
    if (!next) return -1;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*next - SteadyClock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(wait, 0, 60'000));
  }

  bool finishing_on(const Console& console) const {
    return std::any_of(pumps_.begin(), pumps_.end(), [&console](const auto& entry) {
      return entry.second->console == &console && entry.second->finishing;
    });
  }

  // It took nothing for the whole patience while we only wait for it.
  void give_up(Console& console) {
    std::uint64_t lost = console.waiting();
    console.queue.clear();
    console.written = 0;
    console.closed = true;
    for (auto& [id, pump] : pumps_) {
      if (pump->console != &console) continue;
      lost += pump->file_bytes - pump->shown_bytes;
      pump->shown_bytes = pump->file_bytes;
      pause(*pump, false);
    }
    console.lost_bytes += lost;
    if (&console == &consoles_[0]) {
      problem("standard output took nothing for " + std::to_string(patience_.count()) + " ms: " + std::to_string(lost) +
              " bytes of workers' output are not shown there");
    }
  }

  const asio::any_io_executor executor_;
  const OutputPolicy policy_;
  const std::function<void(Ended)> on_ended_;
  const std::function<void(std::string)> on_problem_;
  int next_id_ = 0;

  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  bool stopping_ = false;                        // guarded by mutex_
  int open_streams_ = 0;                         // guarded by mutex_
  std::condition_variable all_ended_;
  std::atomic<bool> orphaned_ = false;  // our owner is gone

  UniqueFd wake_fd_, epoll_;
  std::thread thread_;

  std::chrono::milliseconds patience_;
  std::vector<char> buffer_;
  std::vector<char> buffer2_ = std::vector<char>(64 * 1024);
  Console consoles_[2];
  std::map<int, std::unique_ptr<Pump>> pumps_;
};

OutputHub::OutputHub(asio::any_io_executor executor, OutputPolicy policy, std::function<void(Ended)> on_ended,
                     std::function<void(std::string)> on_problem)
    : impl_(
          std::make_shared<Impl>(std::move(executor), std::move(policy), std::move(on_ended), std::move(on_problem))) {}

OutputHub::~OutputHub() { impl_->stop(); }

int OutputHub::add(Stream stream) { return impl_->add(std::move(stream)); }
void OutputHub::finish(int id, std::chrono::milliseconds limit) { impl_->finish(id, limit); }
bool OutputHub::wait_until_ended(std::chrono::milliseconds limit) { return impl_->wait_until_ended(limit); }
void OutputHub::set_console_patience(std::chrono::milliseconds patience) { impl_->set_patience(patience); }
void OutputHub::copy_window_size() { impl_->copy_window_size(); }
bool OutputHub::is_terminal(Target target) const { return target != Target::none && impl_->console(target).terminal; }

}  // namespace ddprun::launcher
