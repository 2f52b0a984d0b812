#pragma once

#include <chrono>
#include <string>

#include "common/clock.h"
#include "common/result.h"

namespace ddprun::launcher {

// --report FILE: whole or not at all (written beside it, then renamed). A device, pipe or link is written to, at most
// kSpecialLimit long.
// Several nodes of a job may have been given the same path on one disk. The first one to end has it; a node that finds
// a report there that was written while it ran puts its own beside it, with its host's name before the extension
// ("report.node2.json"). A report of an earlier run is replaced.
class ReportFile {
 public:
  static constexpr std::chrono::seconds kSpecialLimit{5};

  // Finds out before the start what can be known then. Errors: system or invalid_argument with the path.
  static Result<ReportFile> open(std::string path, std::string host, bool several_nodes);

  // The path that it was written to. Errors: system, timed_out.
  Result<std::string> write(const std::string& text) const;

 private:
  ReportFile(std::string path, std::string host, bool several_nodes)
      : path_(std::move(path)), host_(std::move(host)), several_nodes_(several_nodes) {}

  std::string path_, host_;
  bool several_nodes_;
  TimePoint since_ = SteadyClock::now();
};

// The launcher's own TORCHELASTIC_ERROR_FILE.
Result<void> write_file(const std::string& path, const std::string& text);

// To whoever started us for a node of a host list (launcher/hosts): into the file in memory whose descriptor
// DDPRUN_HOST_REPORT_FD names. False where there is none.
bool hand_over_report(const std::string& json);

}  // namespace ddprun::launcher
