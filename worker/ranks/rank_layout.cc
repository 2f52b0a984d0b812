#include "worker/ranks/rank_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

namespace ddprun::trainer {

Result<RankLayout> lay_out(const std::vector<TaskPlace>& tasks) {
  std::map<std::string, std::size_t> index;
  std::vector<std::vector<std::pair<std::int64_t, std::size_t>>> hosts;  // (number there, task)
  RankLayout layout;
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    const auto [found, fresh] = index.try_emplace(tasks[task].host, hosts.size());
    if (fresh) hosts.emplace_back();
    hosts[found->second].emplace_back(tasks[task].local, task);
    if (tasks[task].store_host.empty()) layout.store_group = static_cast<std::int64_t>(found->second);
  }
  const auto served_on = static_cast<std::size_t>(layout.store_group);
  for (const TaskPlace& task : tasks) {
    if (index.at(task.host) != served_on && layout.store_host.empty()) layout.store_host = task.store_host;
  }
  layout.tasks.resize(tasks.size());
  layout.hosts = static_cast<std::int64_t>(hosts.size());
  std::int64_t rank = 0;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    auto& here = hosts[host];
    std::sort(here.begin(), here.end());
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (i > 0 && here[i].first == here[i - 1].first) {
        return Error(
            Errc::invalid_argument,
            fmt::format("tasks {} and {} are both number {} of a host called {}: give the hosts different names",
                        here[i - 1].second, here[i].second, here[i].first, tasks[here[i].second].host));
      }
      RankPlace& place = layout.tasks[here[i].second];
      place.rank = rank++;
      place.local_rank = static_cast<std::int64_t>(i);
      place.local_world_size = static_cast<std::int64_t>(here.size());
      place.group_rank = static_cast<std::int64_t>(host);
    }
  }
  return layout;
}

std::string to_text(const TaskPlace& place) {
  return fmt::format("{} {} {}", place.local, place.host, place.store_host.empty() ? "-" : place.store_host);
}

Result<TaskPlace> parse_task_place(std::string_view text) {
  std::istringstream in{std::string(text)};
  TaskPlace place;
  if (!(in >> place.local >> place.host >> place.store_host)) {
    return Error(Errc::malformed, fmt::format("'{}' is not the place of a task", text));
  }
  if (place.store_host == "-") place.store_host.clear();
  return place;
}

std::string to_text(const RankLayout& layout) {
  std::string text = fmt::format("{} {} {} {}", layout.tasks.size(), layout.hosts, layout.store_group,
                                 layout.store_host.empty() ? "-" : layout.store_host);
  for (const RankPlace& place : layout.tasks) {
    text += fmt::format(" {} {} {} {}", place.rank, place.local_rank, place.local_world_size, place.group_rank);
  }
  return text;
}

Result<RankLayout> parse_rank_layout(std::string_view text) {
  std::istringstream in{std::string(text)};
  RankLayout layout;
  std::size_t count = 0;
  in >> count >> layout.hosts >> layout.store_group >> layout.store_host;
  if (layout.store_host == "-") layout.store_host.clear();
  for (std::size_t i = 0; i < count && in; ++i) {
    RankPlace place;
    in >> place.rank >> place.local_rank >> place.local_world_size >> place.group_rank;
    const auto within = [](std::int64_t value, std::int64_t bound) { return value >= 0 && value < bound; };
    if (!within(place.rank, static_cast<std::int64_t>(count)) || !within(place.local_rank, place.local_world_size) ||
        !within(place.local_world_size - 1, static_cast<std::int64_t>(count)) ||
        !within(place.group_rank, layout.hosts)) {
      in.setstate(std::ios::failbit);
    }
    layout.tasks.push_back(place);
  }
  if (!in || count == 0) return Error(Errc::malformed, "the ranks' places, as task 0 has told them, do not parse");
  return layout;
}

}  // namespace ddprun::trainer
