#include "worker/report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "common/log.h"

namespace ddprun::trainer {
namespace {

std::string time_stamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc = {};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, ms);
}

std::string rate(const ProgressState& state) {
  std::string text = format_speed(state.samples_per_s) + " samples/s";
  if (state.tokens_per_s > 0) text += " " + format_speed(state.tokens_per_s) + " tokens/s";
  return text;
}

// mpirun hands a pseudo-terminal of no size to programs whose output it collects: no place for a bar.
bool has_width(int fd) {
  winsize size = {};
  return ::isatty(fd) == 1 && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
}

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string format_loss(double loss) {
  if (std::isnan(loss)) return "nan";
  const double size = std::fabs(loss);
  return (size >= 0.1 && size < 1e6) || size == 0 ? fmt::format("{:.4f}", loss) : fmt::format("{:.4g}", loss);
}

std::string format_speed(double per_second) {
  return per_second < 100 ? fmt::format("{:.3g}", per_second) : fmt::format("{:.0f}", per_second);
}

std::string progress_line(const ProgressState& s) {
  return fmt::format("epoch {}/{} step {}/{} loss {} lr {:.3g} {} eta {}", s.epoch + 1, s.epochs, s.step,
                     s.steps_in_epoch, format_loss(s.loss), s.lr, rate(s), format_duration(s.eta_s));
}

std::string progress_bar(const ProgressState& s, int width) {
  const std::string head = fmt::format("epoch {}/{} ", s.epoch + 1, s.epochs);
  const double share = s.steps_in_epoch > 0 ? static_cast<double>(s.step) / static_cast<double>(s.steps_in_epoch) : 0;
  const std::string tail =
      fmt::format(" {:3.0f}% loss {} {} eta {}", 100 * share, format_loss(s.loss), rate(s), format_duration(s.eta_s));
  const int room = std::max(0, std::min(40, width - 2 - static_cast<int>(head.size() + tail.size())));
  const int filled = static_cast<int>(share * room);
  std::string bar;
  if (room >= 4) {
    bar = "[" + std::string(static_cast<std::size_t>(filled), '#') +
          std::string(static_cast<std::size_t>(room - filled), '.') + "]";
  }
  std::string all = head + bar + tail;
  if (width > 0 && all.size() > static_cast<std::size_t>(width)) all.resize(static_cast<std::size_t>(width));
  return all;
}

Reporter::Reporter(bool quiet) : quiet_(quiet), terminal_(!quiet && has_width(STDOUT_FILENO)) {}

Result<void> Reporter::open_log(const std::string& path) {
  auto file = LineFile::open(path, -1);
  if (!file) return std::move(file).error();
  log_ = std::move(*file);
  return {};
}

Reporter::~Reporter() {
  clear_bar();
  if (terminal_) std::fflush(stdout);
}

void Reporter::clear_bar() {
  if (!bar_shown_) return;
  std::fputs("\r\x1b[K", stdout);
  bar_shown_ = false;
}

void Reporter::line(std::string_view text) {
  if (quiet_) return;
  clear_bar();
  // One write per line, so that lines of several ranks stay whole.
  const std::string whole = std::string(text) + "\n";
  std::fwrite(whole.data(), 1, whole.size(), stdout);
  std::fflush(stdout);
  to_log(text);
}

void Reporter::to_log(std::string_view text) {
  if (!log_) return;
  auto written = log_->append(fmt::format("{} {}\n", time_stamp(), text));
  if (!written) {
    log_warning("log file given up: {}", written.error().message());
    log_.reset();
  }
}

void Reporter::progress(const ProgressState& state, bool due) {
  if (quiet_) return;
  if (!terminal_) {
    if (due) line(progress_line(state));
    return;
  }
  bar(state);
  if (due) to_log(progress_line(state));
}

void Reporter::bar(const ProgressState& state) {
  const TimePoint now = SteadyClock::now();
  if (bar_shown_ && now - last_bar_ < std::chrono::milliseconds(100)) return;
  last_bar_ = now;
  winsize size = {};
  const int width = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col - 1 : 79;
  std::fputs(("\r\x1b[K" + progress_bar(state, width)).c_str(), stdout);
  std::fflush(stdout);
  bar_shown_ = true;
}

}  // namespace ddprun::trainer
