#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/types.h"
#include "launcher/worker_group.h"

// The last word to the user: one root cause, on the console and as JSON.
namespace ddprun::launcher {

// One worker that failed. Fill it from a WorkerExit and WorkerGroup::evidence(); what another node told us has host,
// rank and status only.
struct WorkerFailure {
  std::string host;
  Rank rank;
  LocalRank local_rank;
  std::string role_name = "default";
  pid_t pid = 0;
  ExitStatus status;
  std::chrono::system_clock::time_point time;  // when it ended
  bool stopped_by_us = false;                  // an echo: it was signalled by the launcher
  WorkerEvidence evidence;
};

struct AttemptRecord {
  std::int64_t restart_count = 0;
  Round round;
  std::chrono::milliseconds lasted{0};
  std::string outcome;  // "rank 3 on node2 ended with exit code 1", "node2 left", "succeeded"
};

struct JobReport {
  std::string run_id;
  std::string entrypoint;  // the script or program
  std::string python;      // the interpreter that was used; "" = none
  int exit_code = 0;       // of ddprun
  std::string reason;      // when it was no worker: "rendezvous timed out after 60 s: ...", "stopped by SIGTERM"
  std::optional<WorkerFailure> root_cause;
  std::vector<WorkerFailure> others;  // without the root cause, in the order of their ends
  std::vector<AttemptRecord> attempts;
  std::string log_folder;  // "" = none that stays
};

WorkerFailure make_failure(const WorkerExit& exit, WorkerEvidence evidence, std::string host, std::string role_name);

// For the console; ends with a newline. "" when there is neither a root cause nor a reason.
std::string to_text(const JobReport& report);
std::string to_json(const JobReport& report);

// What a user can do about it, in a sentence or two; "" = nothing sure to say. Never a guess without evidence.
std::string remedy(const JobReport& report, const WorkerFailure& failure);

// --report FILE: whole or not at all (written beside it, then renamed). Errors: system with the path.
Result<void> write_report_file(const std::string& path, const JobReport& report);

// When the launcher itself has TORCHELASTIC_ERROR_FILE: the root cause in torch's schema, with message.errorCode.
Result<void> write_own_error_file(const std::string& path, const JobReport& report);

}  // namespace ddprun::launcher
