#pragma once

#include <string>

#include "common/clock.h"
#include "common/engine_task.h"
#include "common/result.h"

// Task 0 tells all other tasks of its mpirun a word, by the engine's own process management interface. A task that has
// said hello there must say goodbye before it ends, or the engine ends the whole job: so both happen here.
namespace ddprun {

struct Exchanged {
  std::string word;  // of task 0
  std::string job;   // hydra: the name of its key-value space, one for each mpiexec; else ""
};

// `mine`: of task 0, one line without blanks at its ends, at most 900 bytes (hydra takes 1024); of others not used.
// hydra: the PMI-1 wire protocol on PMI_FD. Open MPI: libpmix.so.2, loaded in a child, so that neither its threads nor
// a call that never returns are ours. Collective over all tasks. Errors: timed_out (not all tasks came until
// `deadline`), not_found (no libpmix.so.2), cancelled (a signal that ends us waits), refused, peer_closed, system.
Result<Exchanged> pmi_exchange(const EngineTask& task, const std::string& mine, TimePoint deadline);

}  // namespace ddprun
