#pragma once

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "common/enum_words.h"

// Our log line, on stderr: time, level, program, words, then key=value:
//   2026-11-29T17:50:01.123Z I ddprun rendezvous complete round=7 group_rank=2 took_ms=1840
// Log changes, not ticks. Without spdlog: of it a level and a pattern were left, since the line, what is escaped in it
// and a standard error that nobody reads are our own matter (stderr_writer.h).
namespace ddprun {

enum class LogLevel { debug, info, warning, error };

constexpr auto words(LogLevel) {
  return std::to_array<EnumWord<LogLevel>>({{LogLevel::debug, "debug"},
                                            {LogLevel::info, "info"},
                                            {LogLevel::warning, "warning"},
                                            {LogLevel::error, "error"}});
}

// Once, at the start of main. `program` stands in every line.
void log_init(std::string_view program, LogLevel level);
void log_set_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_write(LogLevel level, std::string_view message);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::debug)) log_write(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::info)) log_write(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::warning)) log_write(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::error)) log_write(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

// Words of ours that are no log line (an error of usage, the last word): as they are, but control characters other than
// newline and tab are escaped; a newline is put at the end. Texts of others in it that must not start a line go through
// printable(). Like log lines, never waits for who reads standard error.
void say(std::string_view text);
// Before the program ends: waits until what was logged and said is out, at most 5 s, and 1 s without any progress.
void log_flush();

namespace internal {
// One whole line with its newline. Control characters in `message` are escaped and continuation lines indented, so that
// text from a peer can neither forge a line nor drive the terminal.
std::string format_log_line(std::chrono::system_clock::time_point time, char level, std::string_view program,
                            std::string_view message);
// Whole lines to descriptor 2 as they are; see common/stderr_writer.h.
void write_stderr(std::string_view bytes);
}  // namespace internal

}  // namespace ddprun
