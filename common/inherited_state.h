#pragma once

#include <chrono>

namespace ddprun {

// What an exec keeps of whoever started us, where our programs care. The whole list, with what becomes of each and what
// the workers get, is in launcher/README.md ("What is inherited").
struct InheritedState {
  std::chrono::milliseconds alarm{0};  // until an alarm() from before our start rings; 0 = none. It is left alone
  bool no_working_directory = false;   // it was removed: no relative name can be found
};

// To be called first in a program, before it starts a thread or opens a file; whoever must hand the old state on (the
// launcher, to its workers) takes it before. Sets what our programs rely on:
// - standard input, output and error are open and block;
// - no signal is blocked; SIGCHLD has its default action; SIGPIPE and SIGXFSZ are ignored, so that a reader that is
// gone
//   and a full file (ulimit -f) are errors of a write and not our end;
// - no timer of CPU time runs.
InheritedState settle_inherited_state();

}  // namespace ddprun
