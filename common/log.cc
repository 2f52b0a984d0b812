#include "common/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <ctime>
#include <map>
#include <memory>
#include <mutex>

#include "common/printable.h"
#include "common/stderr_writer.h"

namespace ddprun {
namespace {

// One write() a line: it is never torn by another process on the same pipe (below PIPE_BUF). See StderrWriter for a
// reader that is slow or away.
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

std::string& program_name() {
  static auto* name = new std::string("ddprun");
  return *name;
}

// Leaked, as the logger below.
StderrWriter& writer() {
  static auto* instance = new StderrWriter(STDERR_FILENO, [](std::uint64_t lines) {
    return internal::format_log_line(
        std::chrono::system_clock::now(), 'W', program_name(),
        fmt::format("{} lines of our own are missing here: standard error took nothing", lines));
  });
  return *instance;
}

std::shared_ptr<spdlog::logger> make_logger(std::string program, LogLevel level) {
  auto logger = std::make_shared<spdlog::logger>("ddprun", std::make_shared<StderrSink>(std::move(program)));
  logger->set_level(to_spdlog(level));
  return logger;
}

// Process-wide state: leaked, so that code that runs after main can still log.
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
  for (const char c : printable_lines(message)) {
    line.push_back(c);
    if (c == '\n') line += "  ";
  }
  line.push_back('\n');
  return line;
}

void write_stderr(std::string_view bytes) { writer().write(bytes); }

}  // namespace internal

std::optional<LogLevel> parse_log_level(std::string_view text) {
  if (text == "debug") return LogLevel::debug;
  if (text == "info") return LogLevel::info;
  if (text == "warning") return LogLevel::warning;
  if (text == "error") return LogLevel::error;
  return std::nullopt;
}

void log_init(std::string_view program, LogLevel level) {
  program_name() = program;
  logger() = make_logger(std::string(program), level);
}

void say(std::string_view text) {
  std::string line = printable_lines(text);
  if (!line.empty() && line.back() != '\n') line += '\n';
  writer().write(line, true);
}

void log_flush() { writer().flush(std::chrono::seconds(5), std::chrono::seconds(1)); }

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
