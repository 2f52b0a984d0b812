#include "launcher/job/lost_port.h"

#include <algorithm>
#include <string>

namespace ddprun::launcher {

bool lost_master_port(const JobOutcome& outcome, std::chrono::nanoseconds lasted) {
  if (outcome.kind != JobOutcome::Kind::worker_failure || !outcome.root_cause || lasted > kPortRace) return false;
  if (outcome.root_cause->restart_count != 0) return false;
  const auto& lines = outcome.root_cause->last_lines;
  return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("EADDRINUSE") != std::string::npos || line.find("ddress already in use") != std::string::npos;
  });
}

}  // namespace ddprun::launcher
