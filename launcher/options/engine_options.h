#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/engine_task.h"
#include "common/options.h"
#include "common/result.h"
#include "common/types.h"

// What is taken from the cluster's engine where neither a flag nor a variable of ours says it, and what cannot be meant
// so. Decides; the meeting itself (who serves, at which port) is common/engine_meeting.h.
namespace ddprun::launcher {

// The task that this ddprun is, as one of several nodes. nullopt: nothing is to be taken (one node, --standalone,
// --engine=none, nobody started us).
//   host: our name, with or without a domain.
// Errors: invalid_argument, one sentence with the command that is right: several ddprun on a node, a Slurm job's batch
// script or shell instead of its step, Kubernetes without an endpoint; malformed: an engine's variable is.
Result<std::optional<EngineTask>> choose_engine(const ParsedOptions& parsed, const EnvLookup& env,
                                                const std::string& host);

// Nobody has said where the rendezvous is.
bool needs_endpoint(const ParsedOptions& parsed);

// Where the nodes of an engine's step meet, and what they call it.
struct EngineRendezvous {
  std::optional<Endpoint> endpoint;  // nullopt: another one is given
  std::string run_id;
};

// Fills nnodes, node-rank, rdzv-backend, rdzv-endpoint (or master-addr and master-port), rdzv-id, topology-key and
// nproc-per-node where they are not given. `gpus`: that this task may use. The sentence for the user: what was taken.
std::string take_from_engine(ParsedOptions& parsed, const EngineTask& task, const EngineRendezvous& rendezvous,
                             std::int64_t gpus);

// Kubernetes: a pod of an Indexed Job has an index, and that is all it says.
void take_from_kubernetes(ParsedOptions& parsed, const EnvLookup& env);

}  // namespace ddprun::launcher
