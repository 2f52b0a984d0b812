#pragma once

#include <string>

#include "launcher/process/process.h"

namespace ddprun::launcher::hosts {

// The other end of a remote shell: takes one order over standard input (frames.h), runs ddprun with it, and passes
// output, signals and the end along. When the starting host is gone (standard input ends, or is silent for too long)
// ddprun gets SIGTERM and, when its patience is over, SIGKILL: nothing is left here, whatever happened there.
//   own_path: of this binary. Returns the exit code.
int serve_node(const std::string& own_path, const InheritedSignals& inherited);

}  // namespace ddprun::launcher::hosts
