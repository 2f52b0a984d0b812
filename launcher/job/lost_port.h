#pragma once

#include <chrono>

#include "launcher/life/job_outcome.h"

namespace ddprun::launcher {

// How long after its start a job may fail and be taken for one that lost the race for MASTER_PORT: worker 0 binds it
// right after its imports. Later the same words are about another port, and a second run would repeat the work.
inline constexpr std::chrono::seconds kPortRace{60};

// Only where worker 0 binds MASTER_PORT itself: between our letting go of it and its bind anybody may take it. Whether
// this job, which ended `lasted` after its start, failed for that.
bool lost_master_port(const JobOutcome& outcome, std::chrono::nanoseconds lasted);

}  // namespace ddprun::launcher
