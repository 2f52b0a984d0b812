#include "common/log.h"

#include <unistd.h>

#include <atomic>
#include <ctime>

#include "common/printable.h"
#include "common/stderr_writer.h"

namespace ddprun {
namespace {

// What is below it is not written.
std::atomic<LogLevel> lowest{LogLevel::info};

char letter_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return 'D';
    case LogLevel::info:
      return 'I';
    case LogLevel::warning:
      return 'W';
    case LogLevel::error:
      return 'E';
  }
  return 'I';
}

// Process-wide state: leaked, so that code that runs after main can still log.
std::string& program_name() {
  static auto* name = new std::string("ddprun");
  return *name;
}

// One write() a line: it is never torn by another process on the same pipe (below PIPE_BUF). See StderrWriter for a
// reader that is slow or away.
StderrWriter& writer() {
  static auto* instance = new StderrWriter(STDERR_FILENO, [](std::uint64_t lines) {
    return internal::format_log_line(
        std::chrono::system_clock::now(), 'W', program_name(),
        fmt::format("{} lines of our own are missing here: standard error took nothing", lines));
  });
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
                                 level, program);
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

void log_init(std::string_view program, LogLevel level) {
  program_name() = program;
  lowest = level;
}

void say(std::string_view text) {
  std::string line = printable_lines(text);
  if (!line.empty() && line.back() != '\n') line += '\n';
  writer().write(line, true);
}

void log_flush() { writer().flush(std::chrono::seconds(5), std::chrono::seconds(1)); }

void log_set_level(LogLevel level) { lowest = level; }

bool log_enabled(LogLevel level) { return level >= lowest.load(); }

void log_write(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) return;
  internal::write_stderr(
      internal::format_log_line(std::chrono::system_clock::now(), letter_of(level), program_name(), message));
}

}  // namespace ddprun
