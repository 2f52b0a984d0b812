#pragma once

#include <span>
#include <string>

#include "common/types.h"

namespace ddprun::launcher {

// `ddpctl store get|set|keys|wait|stats`: plain store requests to the store at `endpoint`.
//   arguments: what follows `store`: the verb, then its own:
//     get KEY [--timeout-ms N] | set KEY VALUE | keys [PREFIX] | wait KEY... [--timeout-ms N] | stats; each with
//     --json.
//     --raw: keys as they are on the wire (without torch's leading "/").
// Prints the answer on stdout, errors as one line on stderr. Returns an exit code of common/exit_code.h.
int ctl_store(const Endpoint& endpoint, std::span<const std::string> arguments);

}  // namespace ddprun::launcher
