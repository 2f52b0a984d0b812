#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/engine_task.h"
#include "common/result.h"
#include "common/tcp.h"
#include "common/types.h"

namespace ddprun {

// Where the tasks of an engine meet: task 0 listens there, and the others know where that is without being told.
struct EngineMeeting {
  std::optional<Listener> listener;  // of task 0: bound, nobody accepts yet
  // Task 0: where it listens, as others reach it. Others: where it may be, in this order. Slurm's ports are a rule and
  // not a message: another job may sit at one of them, so ask who is there.
  std::vector<Endpoint> endpoints;
  std::string job;  // task.job, or what the engine calls it
};

// Slurm: the first host of the step and kEnginePorts ports; its name is asked for, and where it has no address,
// scontrol for the node's. Open MPI and hydra: task 0 publishes its addresses and the kernel's port (pmi_exchange()),
// the others take the first address that answers. All tasks on one host: loopback. Collective under Open MPI and hydra.
// Errors: those of pmi_exchange(), refused (no port is free), not_found (nothing of task 0 can be reached).
Result<EngineMeeting> meet(const EngineTask& task, TimePoint deadline);

}  // namespace ddprun
