#pragma once

#include <chrono>
#include <string>

#include "common/rdzv_protocol.h"
#include "common/signal_names.h"
#include "launcher/life/job_outcome.h"

// Outcomes and words of a node's life that need nothing but their arguments. Pure.
namespace ddprun::launcher {

// "10:15:02 UTC"
std::string time_of_day(std::chrono::system_clock::time_point time);

JobOutcome signalled_outcome(int signal);
// Takes nothing of the message for granted: a root that is no index of `failures` counts as none.
JobOutcome shutdown_outcome(rdzv::Shutdown shutdown);

}  // namespace ddprun::launcher
