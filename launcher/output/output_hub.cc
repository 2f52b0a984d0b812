#include "launcher/output/output_hub.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

#include "common/blocked_signals.h"
#include "common/clock.h"
#include "launcher/output/output_console.h"

namespace asio = boost::asio;

namespace ddprun::launcher {
namespace {

constexpr std::size_t kReadBytes = 256 * 1024;
// What a dead worker's helpers may still add to its output, beside what was on its way.
constexpr std::uint64_t kAfterEndBytes = 16 << 20;
// Patience with a console that takes nothing, times this: the patience with one that takes little.
constexpr int kTricklePatience = 4;
constexpr std::uint64_t kWakeId = ~0ULL;
constexpr std::uint64_t kConsoleId = ~0ULL - 2;  // and the next one

std::string error_text(int number) { return std::error_code(number, std::generic_category()).message(); }

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
  bool last_call = false;  // source_limit is over: `budget` is what was in the pipe then
  TimePoint source_limit;
  std::uint64_t budget = 0;  // finishing: what may still be read

  bool has_file() const { return static_cast<bool>(stream.file); }
  bool console_full() const { return console != nullptr && console->takes() && !has_file() && console->full(); }
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
        patience_(policy_.console_patience),
        consoles_{Console(policy_.console_stdout), Console(policy_.console_stderr)} {}

  const Console& console(Target target) const { return consoles_[target == Target::console_stdout ? 0 : 1]; }

  int add(Stream stream) {
    start_thread();
    const int id = next_id_++;
    {
      const std::lock_guard lock(mutex_);
      ++open_streams_;
    }
    auto pump = std::make_shared<Pump>();
    pump->id = id;
    pump->stream = std::move(stream);
    command([this, pump] { take(pump); });
    return id;
  }

  void finish(int id, std::chrono::milliseconds limit) {
    if (!thread_.joinable()) return;
    command([this, id, limit] {
      const auto found = pumps_.find(id);
      if (found == pumps_.end()) return;
      Pump& pump = *found->second;
      pump.finishing = true;
      pump.source_limit = SteadyClock::now() + limit;
      pump.budget = kAfterEndBytes + unread(pump);
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
        if (pump->console != nullptr && pump->console->out.is_terminal() && ::isatty(pump->stream.source.get()) == 1 &&
            ::ioctl(pump->console->out.poll_fd(), TIOCGWINSZ, &size) == 0) {
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
    {
      // It hangs in a write to a terminal that could not be opened again, or to a dead file system: it keeps what it
      // needs and is left to itself.
      std::unique_lock lock(mutex_);
      if (!all_ended_.wait_for(lock, std::chrono::seconds(2), [this] { return thread_done_; })) {
        thread_.detach();
        return;
      }
    }
    thread_.join();
    commands_.clear();
    pumps_.clear();
  }

 private:
  // Throws std::system_error when there is no room for it; then nothing has changed.
  void start_thread() {
    if (thread_.joinable()) return;
    wake_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_fd_) throw std::system_error(errno, std::generic_category());
    epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) throw std::system_error(errno, std::generic_category());
    watch(wake_fd_.get(), EPOLLIN, kWakeId);
    buffer_.resize(kReadBytes);
    const BlockedSignals blocked;
    thread_ = std::thread([self = shared_from_this()] { self->live(); });
  }

  void command(std::function<void()> run) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(run));
    }
    wake();
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
        if (stopping_) {
          thread_done_ = true;
          all_ended_.notify_all();
          return;
        }
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
    if (event.data.u64 >= kConsoleId) {  // serve() flushes
      Console& console = consoles_[event.data.u64 - kConsoleId];
      if (!console.stuck || finishing_on(console)) return;
      const std::uint64_t lost = console.resume();
      problem(std::string(name_of(console)) + " takes output again; " + std::to_string(lost) +
              " bytes of workers' output are missing there");
      return;
    }
    const auto found = pumps_.find(static_cast<int>(event.data.u64));
    if (found != pumps_.end()) read_some(*found->second);
  }

  void take(std::shared_ptr<Pump> pump) {
    if (pump->stream.target != Target::none) {
      pump->console = &consoles_[pump->stream.target == Target::console_stdout ? 0 : 1];
      pump->mixer_id = pump->console->mixer.add(pump->stream.prefix);
    }
    watch(pump->stream.source.get(), EPOLLIN, static_cast<std::uint64_t>(pump->id));
    pumps_.emplace(pump->id, pump);
  }

  // One read; level-triggered, so that a loud stream does not starve the others. False: nothing there now.
  bool read_some(Pump& pump) {
    if (pump.ended || pump.paused) return false;
    const std::size_t most = pump.finishing ? std::min<std::uint64_t>(pump.budget, buffer_.size()) : buffer_.size();
    if (most == 0) {
      cut(pump);
      return false;
    }
    const ssize_t n = ::read(pump.stream.source.get(), buffer_.data(), most);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
    if (n <= 0) {  // EIO: all have closed the pty
      end_source(pump);
      return false;
    }
    const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(n));
    if (pump.finishing) pump.budget -= bytes.size();
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
    if (!pump.console->takes()) {
      pump.console->lost_bytes += bytes.size();
      pump.shown_bytes = pump.file_bytes;
      return;
    }
    if (in_file && (was_lagging || pump.console->full())) return;  // later, from the file
    show(pump, bytes);
    if (in_file) pump.shown_bytes = pump.file_bytes;
  }

  static std::uint64_t unread(const Pump& pump) {
    int bytes = 0;
    return ::ioctl(pump.stream.source.get(), FIONREAD, &bytes) == 0 && bytes > 0 ? static_cast<std::uint64_t>(bytes)
                                                                                 : 0;
  }

  // Who still writes has outlived the worker and was not found: its output would have no end.
  void cut(Pump& pump) {
    if (unread(pump) > 0) {
      problem(pump.stream.name +
              ": a process that outlived the worker still writes to it; what it writes from here on " + "is not kept");
    }
    end_source(pump);
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
    pump.console->mixer.feed(pump.mixer_id, bytes, SteadyClock::now(), pump.console->queue);
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
        if (pump.console != nullptr && pump.console->takes()) {
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
      if (console.waiting() == 0) {
        console.last_progress = now;
        console.mixer.flush_idle(now, console.queue);
      } else {
        // A writer that waits for a console in the middle of a line has not paused there.
        console.mixer.hold_again(now);
      }
      console.flush(now);
    }
    for (auto& [id, pump] : pumps_) {
      Console* const console = pump->console;
      if (console == nullptr) continue;
      if (!console->takes()) pump->shown_bytes = pump->file_bytes;
      if (pump->lagging()) catch_up(*pump, false);
      // Without a (working) file the worker itself has to wait, as it would on a stopped terminal.
      const bool only_console = !pump->has_file() || pump->file_broken;
      pause(*pump, only_console && console->full() && console->takes());
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
          if (!std::exchange(pump->last_call, true)) pump->budget = std::min(pump->budget, unread(*pump));
          while (!pump->console_full() && read_some(*pump)) {
          }
          if (!pump->console_full()) cut(*pump);
        }
        // A paused one goes on when its console has room again.
        if (!pump->ended && !pump->paused) at(std::max(pump->source_limit, now + std::chrono::milliseconds(1)));
      }
      if (pump->ended && !pump->lagging()) {
        if (pump->mixer_id >= 0) {
          pump->console->mixer.finish(pump->mixer_id, pump->console->queue);
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
      const bool only_waits = finishing_on(console);
      if (console.waiting() > 0 && only_waits) {
        if (all_finish_on(console) && !console.waited_for_since) console.waited_for_since = now;
        const TimePoint idle_limit = console.last_progress + patience_;
        const TimePoint limit = console.waited_for_since
                                    ? std::min(idle_limit, *console.waited_for_since + kTricklePatience * patience_)
                                    : idle_limit;
        if (now >= limit) give_up(console);
        at(std::max(now, limit));
      }
      if (!all_finish_on(console)) console.waited_for_since.reset();
      // One that was given up is taken on again by what comes later.
      const bool want = console.waiting() > 0 || (console.stuck && !only_waits);
      if (want && !console.armed) {
        watch(console.out.poll_fd(), EPOLLOUT, kConsoleId + i);
        console.armed = true;
      } else if (!want && console.armed) {
        unwatch(console.out.poll_fd());
        console.armed = false;
      }
      if (const auto flush = console.mixer.next_flush()) at(*flush);
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

  bool all_finish_on(const Console& console) const {
    return std::all_of(pumps_.begin(), pumps_.end(), [&console](const auto& entry) {
      return entry.second->console != &console || entry.second->finishing;
    });
  }

  const char* name_of(const Console& console) const {
    return &console == consoles_.data() ? "standard output" : "standard error";
  }

  // It took nothing, or next to nothing, while we only wait for it.
  void give_up(Console& console) {
    std::uint64_t lost = console.give_up();
    for (auto& [id, pump] : pumps_) {
      if (pump->console != &console) continue;
      lost += pump->file_bytes - std::min(pump->file_bytes, pump->shown_bytes);
      pump->shown_bytes = pump->file_bytes;
      pause(*pump, false);
    }
    console.lost_bytes = lost;
    problem(std::string(name_of(console)) + " took too little for " + std::to_string(patience_.count()) +
            " ms and more: " + std::to_string(lost) + " bytes of workers' output are not shown there");
  }

  const asio::any_io_executor executor_;
  const OutputPolicy policy_;
  const std::function<void(Ended)> on_ended_;
  const std::function<void(std::string)> on_problem_;
  int next_id_ = 0;

  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  bool stopping_ = false;                        // guarded by mutex_
  bool thread_done_ = false;                     // guarded by mutex_
  int open_streams_ = 0;                         // guarded by mutex_
  std::condition_variable all_ended_;
  std::atomic<bool> orphaned_ = false;  // our owner is gone

  UniqueFd wake_fd_, epoll_;
  std::thread thread_;

  std::chrono::milliseconds patience_;
  std::vector<char> buffer_;
  std::vector<char> buffer2_ = std::vector<char>(64 * 1024);
  std::array<Console, 2> consoles_;
  std::map<int, std::shared_ptr<Pump>> pumps_;  // shared with the command that brings it
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
bool OutputHub::is_terminal(Target target) const {
  return target != Target::none && impl_->console(target).out.is_terminal();
}

}  // namespace ddprun::launcher
