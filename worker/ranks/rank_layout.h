#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

// Who is which rank where an engine started the trainers by itself. Pure.
namespace ddprun::trainer {

// A task as it calls itself.
struct TaskPlace {
  std::string host;
  std::int64_t local = 0;  // among the tasks of its host
  std::string store_host;  // numeric: at which address it has reached the store; "" = it serves it
};

struct RankPlace {
  std::int64_t rank = 0, local_rank = 0, local_world_size = 1, group_rank = 0;
};
struct RankLayout {
  std::vector<RankPlace> tasks;  // by the engine's number of the task
  std::int64_t hosts = 1;
  std::int64_t store_group = 0;  // the host of the store
  std::string store_host;        // its address as another host has reached it; "" = there is one host
};

// The ranks of a host follow each other, hosts come in the order of their first tasks; where the engine numbered tasks
// so, a rank is its task's number. Errors: invalid_argument: two tasks call themselves the same.
Result<RankLayout> lay_out(const std::vector<TaskPlace>& tasks);

std::string to_text(const TaskPlace& place);
Result<TaskPlace> parse_task_place(std::string_view text);
std::string to_text(const RankLayout& layout);
Result<RankLayout> parse_rank_layout(std::string_view text);

}  // namespace ddprun::trainer
