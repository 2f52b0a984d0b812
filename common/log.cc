#include "common/log.h"

#include <poll.h>
#include <pthread.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>

namespace ddprun {
namespace {

// One write() a line and no lock anywhere: a line is never torn by another process on the same pipe (below PIPE_BUF),
// and a child that was forked while another thread was logging can still log.
class StderrSink final : public spdlog::sinks::sink {
 public:
  explicit StderrSink(std::string program) : program_(std::move(program)) {}

  void log(const spdlog::details::log_msg& message) override {
    const std::string line =
        internal::format_log_line(message.time, spdlog::level::to_short_c_str(message.level)[0], program_,
                                  std::string_view(message.payload.data(), message.payload.size()));
    internal::write_stderr(line);
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  std::string program_;
};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::shared_ptr<spdlog::logger> make_logger(std::string program, LogLevel level) {
  auto logger = std::make_shared<spdlog::logger>("ddprun", std::make_shared<StderrSink>(std::move(program)));
  logger->set_level(to_spdlog(level));
  return logger;
}

// The one piece of process-wide state of this file: leaked, so that code that runs after main can still log.
std::shared_ptr<spdlog::logger>& logger() {
  static auto* instance = new std::shared_ptr<spdlog::logger>(make_logger("ddprun", LogLevel::info));
  return *instance;
}

struct Repeats {
  std::string message;
  std::uint64_t count = 0;
};

struct ChangeLog {
  std::mutex mutex;
  std::map<std::string, Repeats, std::less<>> last;
};

ChangeLog& change_log() {
  static auto* instance = new ChangeLog;
  return *instance;
}

}  // namespace

namespace internal {

std::string format_log_line(std::chrono::system_clock::time_point time, char level, std::string_view program,
                            std::string_view message) {
  const auto since_epoch = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(since_epoch / 1000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::string line = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} {} ", utc.tm_year + 1900,
                                 utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, since_epoch % 1000,
                                 static_cast<char>(level == 'C' ? 'E' : level), program);
  // A peer's text must not be able to forge a line of ours or to drive the terminal.
  for (const char c : message) {
    if (c == '\n') {
      line += "\n  ";
    } else if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line.push_back(c);
    }
  }
  line.push_back('\n');
  return line;
}

void write_stderr(std::string_view bytes) {
  // A reader that went away must not kill us with SIGPIPE, whatever this process has done about that signal.
  sigset_t pipe_only, before, pending;
  sigemptyset(&pipe_only);
  sigaddset(&pipe_only, SIGPIPE);
  sigemptyset(&pending);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      // Somebody made the shared stderr non-blocking. Wait a moment for the reader, then give the line up.
      pollfd entry{STDERR_FILENO, POLLOUT, 0};
      if (::poll(&entry, 1, 1000) > 0) continue;
    }
    if (n < 0 && errno == EPIPE && !was_pending) {
      const timespec none{0, 0};
      while (sigtimedwait(&pipe_only, nullptr, &none) < 0 && errno == EINTR) {
      }
    }
    break;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace internal

std::optional<LogLevel> parse_log_level(std::string_view text) {
  if (text == "debug") return LogLevel::debug;
  if (text == "info") return LogLevel::info;
  if (text == "warning") return LogLevel::warning;
  if (text == "error") return LogLevel::error;
  return std::nullopt;
}

void log_init(std::string_view program, LogLevel level) { logger() = make_logger(std::string(program), level); }

void log_set_level(LogLevel level) { logger()->set_level(to_spdlog(level)); }

bool log_enabled(LogLevel level) { return logger()->should_log(to_spdlog(level)); }

void log_write(LogLevel level, std::string_view message) {
  logger()->log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

void log_on_change(LogLevel level, std::string_view key, std::string_view message) {
  ChangeLog& log = change_log();
  std::uint64_t repeats = 0;
  {
    const std::lock_guard lock(log.mutex);
    const auto found = log.last.find(key);
    if (found == log.last.end()) {
      log.last.emplace(std::string(key), Repeats{std::string(message), 0});
    } else if (found->second.message == message) {
      ++found->second.count;
      return;
    } else {
      repeats = found->second.count;
      found->second = Repeats{std::string(message), 0};
    }
  }
  if (repeats == 0) {
    log_write(level, message);
  } else {
    log_write(level, fmt::format("{} previous_message_repeated={}", message, repeats));
  }
}

}  // namespace ddprun
