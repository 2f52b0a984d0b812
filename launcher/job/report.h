#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/failure_record.h"
#include "common/types.h"

// The last word to the user: one root cause, on the console and as JSON. Pure; report_file.h writes it to disk. What
// came from workers or other nodes is made printable on the console.
namespace ddprun::launcher {

struct AttemptRecord {
  std::int64_t restart_count = 0;
  Round round;
  std::chrono::milliseconds lasted{0};
  std::chrono::milliseconds ended_unix_time{0};  // since 1970, this host's clock
  std::string outcome;                           // "rank 3 on node2 ended with exit code 1", "node2 left", "succeeded"
};

struct JobReport {
  std::string run_id;
  std::string entrypoint;  // the script or program
  std::string python;      // the interpreter that was used; "" = none
  int exit_code = 0;       // of ddprun
  bool success = false;
  std::string reason;  // when it was no worker: "rendezvous timed out after 60 s: ...", "stopped by SIGTERM"
  std::optional<FailureRecord> root_cause;
  std::vector<FailureRecord> failures;  // all, in the order of their ends; may contain the root cause again
  std::vector<AttemptRecord> attempts;  // may be empty
  std::vector<std::string> notes;       // of the job's outcome
  std::string host;                     // this node's name
  bool root_is_above = false;           // the last lines of the root cause went to the console that the report goes to
  std::string log_folder;               // of this node; "" = none that stays
  std::string collectives;              // flight_verdict() of this node at the first failure, lines; "" = nobody waited
};

// One line per attempt that did not end the job: which, how long, how it ended, when; "" if there was only one.
std::string earlier_attempts(const JobReport& report);

// For the console; ends with a newline. "" on success, or when there is neither a root cause nor a reason.
std::string to_text(const JobReport& report);
std::string to_json(const JobReport& report);

// "exit code 3", "SIGKILL (signal 9)", "killed by the kernel: out of memory".
std::string how_it_ended(const FailureRecord& failure);

// What it was, in one line: the error file's message, else the last line that names an error, else "".
std::string failure_message(const FailureRecord& failure);

// What a user can do about it, in a sentence or two; "" = nothing sure to say. Never a guess without evidence.
std::string remedy(const JobReport& report, const FailureRecord& failure);

// For a launcher that is itself a worker (TORCHELASTIC_ERROR_FILE): torch's schema, with message.errorCode.
std::string to_error_file(const FailureRecord& root);

}  // namespace ddprun::launcher
