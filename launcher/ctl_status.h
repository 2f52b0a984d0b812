#pragma once

#include <string>

namespace ddprun::launcher {

inline constexpr const char* kNoJobs = "no jobs\n";  // the table of a status without jobs

// The daemon's status JSON (rendezvous/status.h) as a table for people. Pure. Text that is no such JSON is given back.
std::string status_table(const std::string& json);

}  // namespace ddprun::launcher
