#pragma once

#include <map>
#include <string>
#include <vector>

#include "rendezvous/membership/membership.h"
#include "rendezvous/store/store_options.h"

namespace ddprun::rendezvous {

// Counters since the start, for the metrics.
struct ServerCounters {
  std::uint64_t agent_connections = 0;
  std::uint64_t refused_connections = 0;  // no agents or operators of our version
  std::uint64_t rounds = 0;
  std::uint64_t restarts = 0;  // counted ones
  std::uint64_t worker_failures = 0;
  std::uint64_t nodes_lost = 0;  // left, closed or silent
  std::uint64_t expired = 0;     // nodes that waited in vain
};

// What `ddpctl status --json` prints: {"jobs": [{"run_id", "state": "forming|running|ended", "round", "nnodes_min",
// "nnodes_max", "nodes": [...], "world_size", "restart_count", "max_restarts", "waiting_for", "result", "failures":
// [...], "news": [...]}]}. A node: node_id, host, address, state, connected, group_rank, first_rank (null while it
// waits), nproc, silent_ms.
std::string to_status_json(const std::vector<JobStatus>& jobs,
                           const std::map<std::string, std::vector<std::string>>& news);

// Jobs, nodes, ranks, restarts, waits, store. The two text formats differ in a counter's TYPE line: OpenMetrics 1.0
// leaves _total out of it and ends with "# EOF"; the older one (version 0.0.4) is what `promtool check metrics` reads.
enum class MetricsFormat { text, openmetrics };
std::string to_metrics(MetricsFormat format, const std::vector<JobStatus>& jobs, const ServerCounters& counters,
                       const StoreStats& store);

std::string_view to_string(Phase phase);

}  // namespace ddprun::rendezvous
