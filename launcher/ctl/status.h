#pragma once

#include <string>

#include "common/rdzv_protocol.h"

namespace ddprun::launcher {

inline constexpr const char* kNoJobs = "no jobs\n";  // the table of a status without jobs

// The daemon's status JSON (rendezvous/status.h) as a table for people. Pure. Text that is no such JSON is given back.
std::string status_table(const std::string& json);

// One page of a roster, one line a node: group rank, ranks, host, address, workers, state, id. `first`: with a heading.
std::string roster_text(const rdzv::Roster& page, bool first);

}  // namespace ddprun::launcher
