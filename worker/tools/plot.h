#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace ddprun::trainer {

struct Series {
  std::string name;
  std::vector<double> x, y;
};

// One picture: for each series a panel with a curve (points and their running mean where they jump about).
std::string draw_svg(const std::string& title, const std::vector<Series>& panels);

// loss, lr, scale (where it changes) and samples_per_s over the step. Errors: not_found; malformed with the line.
Result<std::vector<Series>> read_metrics(const std::string& path);

// `trainer plot metrics.jsonl -o run.svg`. Gives the exit code.
int plot(std::span<const std::string> arguments);

}  // namespace ddprun::trainer
