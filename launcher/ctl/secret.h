#pragma once

#include <span>
#include <string>

namespace ddprun::launcher {

// `ddpctl secret new FILE`: a new secret in a new file of mode 600. `ddpctl secret show FILE`: the ids of its keys, as
// refusals name them; never a secret. Returns an exit code of common/exit_code.h.
int ctl_secret(std::span<const std::string> arguments);

}  // namespace ddprun::launcher
