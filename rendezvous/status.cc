#include "rendezvous/status.h"

#include <array>
#include <nlohmann/json.hpp>

namespace ddprun::rendezvous {

using nlohmann::json;

std::string_view to_string(Phase phase) {
  constexpr std::array<std::string_view, 3> kNames = {"forming", "running", "ended"};
  return kNames.at(static_cast<std::size_t>(phase));
}

std::string to_status_json(const std::vector<JobStatus>& jobs,
                           const std::map<std::string, std::vector<std::string>>& news) {
  json all = json::array();
  for (const JobStatus& job : jobs) {
    json nodes = json::array();
    for (const NodeStatus& node : job.nodes) {
      const bool ranked = node.group_rank >= 0;
      nodes.push_back({{"node_id", node.node_id.value},
                       {"host", node.host},
                       {"address", node.address},
                       {"state", rdzv::to_string(node.state)},
                       {"connected", node.connected},
                       {"group_rank", ranked ? json(node.group_rank) : json()},
                       {"first_rank", ranked ? json(node.first_rank) : json()},
                       {"nproc", node.nproc},
                       {"silent_ms", std::chrono::duration_cast<std::chrono::milliseconds>(node.silent_for).count()}});
    }
    json failures = json::array();
    for (const FailureRecord& f : job.failures) {
      failures.push_back({{"rank", f.rank.value},
                          {"host", f.host},
                          {"round", f.round.value},
                          {"restart_count", f.restart_count},
                          {"pid", f.pid},
                          {"exit_code", f.exit_code},
                          {"signal", f.signal},
                          {"unix_ms", f.unix_time.count()},
                          {"what", rdzv::describe(f)}});
    }
    const auto found = news.find(job.run_id.value);
    all.push_back({{"run_id", job.run_id.value},
                   {"state", to_string(job.phase)},
                   {"round", job.round.value},
                   {"nnodes_min", job.nnodes_min},
                   {"nnodes_max", job.nnodes_max},
                   {"group_world_size", job.group_world_size},
                   {"world_size", job.world_size},
                   {"restart_count", job.restart_count},
                   {"max_restarts", job.max_restarts},
                   {"waiting_for", job.waiting_for},
                   {"result", job.result},
                   {"nodes", std::move(nodes)},
                   {"failures", std::move(failures)},
                   {"news", found == news.end() ? json::array() : json(found->second)}});
  }
  // Host names and texts come from peers: bytes that are no UTF-8 are replaced, not thrown at.
  return json{{"jobs", std::move(all)}}.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace ddprun::rendezvous
