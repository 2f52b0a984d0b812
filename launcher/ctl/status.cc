#include "launcher/ctl/status.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/printable.h"

namespace ddprun::launcher {

using nlohmann::json;

namespace {

// Nodes name themselves: what drives a terminal is not passed to the operator's.
std::string words(const json& text) { return printable(text.get<std::string>()); }

std::string rank_text(const json& node) {
  if (node["group_rank"].is_null()) return "-";
  const auto first = node["first_rank"].get<std::int64_t>();
  return fmt::format("{} ({}..{})", node["group_rank"].get<std::int64_t>(), first,
                     first + node["nproc"].get<std::int64_t>() - 1);
}

std::string job_text(const json& job) {
  const auto min = job["nnodes_min"].get<std::int64_t>();
  const auto max = job["nnodes_max"].get<std::int64_t>();
  std::string out = fmt::format(
      "job {}  {}  round {}  nodes {} of {}  world size {}  restarts {} of {}\n", words(job["run_id"]),
      words(job["state"]), job["round"].get<std::int64_t>(), job["group_world_size"].get<std::int64_t>(),
      min == max ? fmt::format("{}", min) : fmt::format("{}:{}", min, max), job["world_size"].get<std::int64_t>(),
      job["restart_count"].get<std::int64_t>(), job["max_restarts"].get<std::int64_t>());
  if (const auto why = words(job["waiting_for"]); !why.empty()) out += "  waits: " + why + "\n";
  if (const auto result = words(job["result"]); !result.empty()) out += "  result: " + result + "\n";
  if (!job["nodes"].empty()) {
    out += fmt::format("  {:<24} {:<24} {:<10} {:<16} {}\n", "HOST", "ADDRESS", "STATE", "NODE (RANKS)", "HEARD");
  }
  for (const json& node : job["nodes"]) {
    const bool connected = node["connected"].get<bool>();
    out +=
        fmt::format("  {:<24} {:<24} {:<10} {:<16} {}\n", words(node["host"]), words(node["address"]),
                    words(node["state"]), rank_text(node),
                    connected ? fmt::format("{} ms ago", node["silent_ms"].get<std::int64_t>()) : "connection closed");
  }
  for (const json& failure : job["failures"]) {
    out += fmt::format("  failure in round {}, attempt {}: {}\n", failure["round"].get<std::int64_t>(),
                       failure["restart_count"].get<std::int64_t>(), words(failure["what"]));
  }
  const json& news = job["news"];
  const std::size_t skip = news.size() > 5 ? news.size() - 5 : 0;
  for (std::size_t i = skip; i < news.size(); ++i) out += "  * " + words(news[i]) + "\n";
  return out;
}

}  // namespace

std::string status_table(const std::string& text) {
  try {
    const json status = json::parse(text);
    std::string out;
    for (const json& job : status.at("jobs")) out += job_text(job);
    return out.empty() ? std::string(kNoJobs) : out;
  } catch (const json::exception&) {
    return printable_lines(text) + "\n";
  }
}

std::string roster_text(const rdzv::Roster& page, bool first) {
  constexpr const char* kLine = "{:<6} {:<16} {:<24} {:<24} {:<6} {:<10} {}\n";
  std::string out;
  if (first) out += fmt::format(kLine, "NODE", "RANKS", "HOST", "ADDRESS", "NPROC", "STATE", "ID");
  for (const rdzv::RosterEntry& e : page.entries) {
    const bool ranked = e.group_rank >= 0;
    out += fmt::format(kLine, ranked ? std::to_string(e.group_rank) : "-",
                       ranked ? fmt::format("{}..{}", e.first_rank, e.first_rank + e.nproc - 1) : "-",
                       printable(e.host), printable(e.address), e.nproc, to_word(e.state), printable(e.node_id));
  }
  return out;
}

}  // namespace ddprun::launcher
