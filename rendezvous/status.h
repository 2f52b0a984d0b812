#pragma once

#include <map>
#include <string>
#include <vector>

#include "rendezvous/membership.h"

namespace ddprun::rendezvous {

// What `ddpctl status --json` prints: {"jobs": [{"run_id", "state": "forming|running|ended", "round", "nnodes_min",
// "nnodes_max", "nodes": [...], "world_size", "restart_count", "max_restarts", "waiting_for", "result", "failures":
// [...], "news": [...]}]}. A node: node_id, host, address, state, connected, group_rank, first_rank (null while it
// waits), nproc, silent_ms.
std::string to_status_json(const std::vector<JobStatus>& jobs,
                           const std::map<std::string, std::vector<std::string>>& news);

std::string_view to_string(Phase phase);

}  // namespace ddprun::rendezvous
