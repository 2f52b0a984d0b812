#pragma once

#include <array>
#include <string_view>

namespace ddprun {

// Every exit code of every program. A failed worker's own code and 128 + signal are passed through by ddprun and are
// not in this table. The README, the Slurm and the Kubernetes files use the same numbers; a test compares them.
namespace exit_code {
inline constexpr int kOk = 0;
inline constexpr int kFailure = 1;          // anything that has no better code; all failures under --exit-code=torchrun
inline constexpr int kUsage = 2;            // bad flag, variable or configuration value
inline constexpr int kUnavailable = 69;     // rendezvous timed out, or too few nodes are left (EX_UNAVAILABLE)
inline constexpr int kResumeMe = 75;        // every worker ended with 75: saved, start me again (EX_TEMPFAIL)
inline constexpr int kPermanent = 78;       // failed in a way that a retry cannot mend (EX_CONFIG)
inline constexpr int kNotExecutable = 126;  // program found but not executable
inline constexpr int kProgramNotFound = 127;  // program not found
inline constexpr int kSignalBase = 128;       // 128 + N: ended by signal N
}  // namespace exit_code

struct ExitCodeEntry {
  int code;
  std::string_view name;
  std::string_view meaning;
};

inline constexpr std::array<ExitCodeEntry, 8> kExitCodes{{
    {exit_code::kOk, "ok", "success"},
    {exit_code::kFailure, "failure", "a failure without a better code"},
    {exit_code::kUsage, "usage", "bad flag, environment variable or configuration value"},
    {exit_code::kUnavailable, "unavailable", "rendezvous timed out, or too few nodes are left"},
    {exit_code::kResumeMe, "resume-me", "every worker ended with 75: state saved, start me again"},
    {exit_code::kPermanent, "permanent", "failed in a way that a retry cannot mend"},
    {exit_code::kNotExecutable, "not-executable", "the program exists but cannot be executed"},
    {exit_code::kProgramNotFound, "not-found", "the program was not found"},
}};

}  // namespace ddprun
