#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "worker/report/metrics.h"

namespace ddprun::trainer {

struct ProgressState {
  std::int64_t epoch = 0, epochs = 1;         // from 0
  std::int64_t step = 0, steps_in_epoch = 0;  // within the epoch, from 1
  double loss = 0, lr = 0;
  double samples_per_s = 0;
  double tokens_per_s = 0;  // 0: not a language model
  double eta_s = 0;         // of the whole run
};

std::string format_duration(double seconds);                      // "0:07", "12:34", "3:04:05"
std::string format_loss(double loss);                             // "0.4321", "1.234e-05", "3.22e+37", "nan"
std::string format_speed(double per_second);                      // "1234", "12.3", "0.042"
std::string progress_line(const ProgressState& state);            // one plain line
std::string progress_bar(const ProgressState& state, int width);  // fits `width` columns, no newline

// Rank 0's words: to the screen, and with a time stamp to the log file. On a terminal a bar stands below the lines.
class Reporter {
 public:
  explicit Reporter(bool quiet);  // `quiet` ranks say nothing
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  // Writes the lines to this file too. Errors of LineFile::open(). A file that fails later is said and given up.
  Result<void> open_log(const std::string& path);

  void line(std::string_view text);
  // On a terminal redraws the bar (at most 10 times a second), else prints a line when one is due. The log file gets
  // the lines that are due.
  void progress(const ProgressState& state, bool due);

 private:
  void bar(const ProgressState& state);
  void clear_bar();
  void to_log(std::string_view text);

  bool quiet_;
  bool terminal_;  // stdout is one: bar and lines must not come by different ways
  bool bar_shown_ = false;
  TimePoint last_bar_{};
  std::optional<LineFile> log_;
};

}  // namespace ddprun::trainer
