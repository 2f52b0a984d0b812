#include "rendezvous/server/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/printable.h"

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
                       {"state", to_word(node.state)},
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
  return json{{"jobs", std::move(all)}}.dump(2, ' ', true, json::error_handler_t::replace);
}

namespace {

// A label value as OpenMetrics wants it. One byte that is no UTF-8 would make a scraper refuse everything; it is shown
// as \xNN, and so are control characters and the backslash itself, so that two run ids never become one.
std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, std::max<std::size_t>(1, utf8_length(text)));
    const char c = character.front();
    if (c == '\\' || printable(character) != character) {
      for (const char byte : character) out += fmt::format("\\\\x{:02x}", static_cast<unsigned char>(byte));
    } else {
      if (c == '"') out += '\\';
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

class Exposition {
 public:
  explicit Exposition(MetricsFormat format) : format_(format) {}

  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    if (type == "counter") name_ += "_total";
    const std::string_view shown = format_ == MetricsFormat::openmetrics ? name : std::string_view(name_);
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", shown, help, shown, type);
  }
  void sample(double value, const std::string& labels = "") {
    fmt::format_to(std::back_inserter(text_), "{}{} {}\n", name_, labels.empty() ? "" : "{" + labels + "}", value);
  }
  std::string finish() && { return std::move(text_) + (format_ == MetricsFormat::openmetrics ? "# EOF\n" : ""); }

 private:
  MetricsFormat format_;
  std::string text_, name_;
};

}  // namespace

std::string to_metrics(MetricsFormat format, const std::vector<JobStatus>& jobs, const ServerCounters& counters,
                       const StoreStats& store) {
  Exposition out(format);
  const auto per_job = [&](std::string_view name, std::string_view help, auto value) {
    out.family(name, "gauge", help);
    for (const JobStatus& job : jobs) {
      if (job.nodes.empty()) continue;
      out.sample(static_cast<double>(value(job)), "run_id=\"" + escaped(job.run_id.value) + "\"");
    }
  };
  per_job("ddprun_job_running", "1 while a world of this job runs",
          [](const JobStatus& j) { return j.phase == Phase::running; });
  per_job("ddprun_job_round", "Number of the job's last completed round",
          [](const JobStatus& j) { return j.round.value; });
  per_job("ddprun_job_nodes", "Nodes of the job that are here, spares included",
          [](const JobStatus& j) { return j.nodes.size(); });
  per_job("ddprun_job_world_size", "Ranks of the running world, 0 when none runs",
          [](const JobStatus& j) { return j.world_size; });
  per_job("ddprun_job_restarts", "Restarts of the job that were counted",
          [](const JobStatus& j) { return j.restart_count; });
  per_job("ddprun_job_max_restarts", "Restarts that the job may have",
          [](const JobStatus& j) { return j.max_restarts; });
  out.family("ddprun_job_nodes_by_state", "gauge", "Nodes of the job by state");
  for (const JobStatus& job : jobs) {
    if (job.nodes.empty()) continue;
    std::array<std::int64_t, 5> states{};
    for (const NodeStatus& node : job.nodes) ++states.at(static_cast<std::size_t>(node.state));
    for (std::size_t i = 0; i < states.size(); ++i) {
      out.sample(static_cast<double>(states[i]), fmt::format("run_id=\"{}\",state=\"{}\"", escaped(job.run_id.value),
                                                             to_word(static_cast<rdzv::MemberState>(i))));
    }
  }
  const auto counter = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    out.family(name, "counter", help);
    out.sample(static_cast<double>(value));
  };
  counter("ddprun_agent_connections", "Connections of agents that were accepted", counters.agent_connections);
  counter("ddprun_agent_refused_connections", "Connections that opened as no agent or operator of this version",
          counters.refused_connections);
  counter("ddprun_rounds", "Rounds that were completed", counters.rounds);
  counter("ddprun_counted_restarts", "Restarts that were counted against a budget", counters.restarts);
  counter("ddprun_worker_failures", "Failures of workers that the nodes reported", counters.worker_failures);
  counter("ddprun_nodes_departed", "Nodes that left or were lost", counters.nodes_lost);
  counter("ddprun_nodes_expired", "Nodes whose join timeout passed", counters.expired);
  const auto gauge = [&](std::string_view name, std::string_view help, std::size_t value) {
    out.family(name, "gauge", help);
    out.sample(static_cast<double>(value));
  };
  gauge("ddprun_store_connections", "Connected store clients", store.connections);
  gauge("ddprun_store_waiting_connections", "Store clients that wait for a key", store.waiting);
  gauge("ddprun_store_keys", "Keys in the store", store.keys);
  gauge("ddprun_store_size_bytes", "Keys, values and queues in the store", store.stored_bytes);
  std::uint64_t requests = 0;
  for (const std::uint64_t n : store.requests) requests += n;
  counter("ddprun_store_requests", "Store requests that were handled", requests);
  counter("ddprun_store_received_bytes", "Bytes from store clients", store.bytes_in);
  counter("ddprun_store_sent_bytes", "Bytes to store clients", store.bytes_out);
  counter("ddprun_store_refused_connections", "Connections that were no store clients or went over a cap",
          store.refused_garbage + store.refused_too_old + store.refused_malformed + store.refused_memory +
              store.refused_descriptors + store.setup_timeouts);
  return std::move(out).finish();
}

}  // namespace ddprun::rendezvous
