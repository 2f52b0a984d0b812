#pragma once

#include <sys/types.h>

#include <chrono>

namespace ddprun::launcher {

// Waits for the end of a child of ours and takes its status, without an event loop. False: it had not ended when
// `limit` was over. A child that somebody else reaped counts as ended.
bool reap_within(pid_t child, std::chrono::milliseconds limit);

}  // namespace ddprun::launcher
