#pragma once

#include <span>
#include <string>

#include "common/types.h"

namespace ddprun::launcher {

// `ddpctl doctor [--log-dir DIR]`: can jobs run on this host? One line a check: ok, warning or error, what, and what to
// do. Exit code: 0 all ok, 1 warnings, 78 errors.
int ctl_doctor(const Endpoint& endpoint, std::span<const std::string> arguments);

}  // namespace ddprun::launcher
