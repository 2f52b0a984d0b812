#include "common/worker_env.h"

#include <charconv>
#include <functional>
#include <span>

namespace ddprun {
namespace {

using Lookup = std::optional<std::string>;

Error bad_value(std::string_view name, const std::string& value, std::string_view why) {
  return Error(Errc::invalid_argument, std::string(name) + "='" + value + "': " + std::string(why));
}

Result<std::int64_t> parse_number(std::string_view name, const std::string& text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) return bad_value(name, text, "not a whole number");
  if (value < min || value > max) {
    return bad_value(name, text, "must be from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

constexpr std::int64_t kMax = 1'000'000'000;  // more ranks than any job; far from overflow in sums and products

// One row a variable: how it is written and how it is read back. nullopt = leave it out.
struct Variable {
  const char* name;
  std::function<std::optional<std::string>(const WorkerEnv&)> write;
  std::function<Result<void>(WorkerEnv&, const char* name, const std::string& text)> read;
  bool empty_is_a_value = false;  // else: set but empty counts as unset
};

// A whole number behind a plain field or behind a Number<> type.
template <typename Get>
Variable number(const char* name, std::int64_t min, std::int64_t max, Get get) {
  return Variable{name,
                  [get](const WorkerEnv& env) -> std::optional<std::string> {
                    return std::to_string(get(const_cast<WorkerEnv&>(env)));
                  },
                  [get, min, max](WorkerEnv& env, const char* n, const std::string& text) -> Result<void> {
                    auto value = parse_number(n, text, min, max);
                    if (!value) return std::move(value).error();
                    get(env) = *value;
                    return {};
                  }};
}

template <typename Get>
Variable words(const char* name, Get get) {
  return Variable{
      name, [get](const WorkerEnv& env) -> std::optional<std::string> { return get(const_cast<WorkerEnv&>(env)); },
      [get](WorkerEnv& env, const char*, const std::string& text) -> Result<void> {
        get(env) = text;
        return {};
      },
      true};
}

Result<void> read_bool(WorkerEnv& env, const char* name, const std::string& text) {
  if (text == "True" || text == "true" || text == "1") {
    env.use_agent_store = true;
  } else if (text == "False" || text == "false" || text == "0") {
    env.use_agent_store = false;
  } else {
    return bad_value(name, text, "must be True or False");
  }
  return {};
}

Result<void> read_port(WorkerEnv& env, const char* name, const std::string& text) {
  auto value = parse_number(name, text, 1, 65535);
  if (!value) return std::move(value).error();
  env.slice.master.port = static_cast<std::uint16_t>(*value);
  return {};
}

Result<void> read_recorder(WorkerEnv& env, const char* name, const std::string& text) {
  auto value = parse_number(name, text, 0, 1 << 24);
  if (!value) return std::move(value).error();
  env.recorder_fd = static_cast<int>(*value);
  return {};
}

const std::vector<Variable>& table() {
  static const std::vector<Variable> variables{
      number("RANK", 0, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.rank.value; }),
      number("LOCAL_RANK", 0, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.local_rank.value; }),
      number("WORLD_SIZE", 1, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.slice.world_size; }),
      number("LOCAL_WORLD_SIZE", 1, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.local_world_size; }),
      number("GROUP_RANK", 0, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.slice.group_rank.value; }),
      number("GROUP_WORLD_SIZE", 1, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.slice.group_world_size; }),
      words("ROLE_NAME", [](WorkerEnv& e) -> std::string& { return e.role_name; }),
      number("ROLE_RANK", 0, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.role_rank; }),
      number("ROLE_WORLD_SIZE", 1, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.slice.role_world_size; }),
      Variable{"MASTER_ADDR", [](const WorkerEnv& e) -> Lookup { return e.slice.master.host; },
               [](WorkerEnv& e, const char*, const std::string& text) -> Result<void> {
                 e.slice.master.host = text;
                 return {};
               }},
      Variable{"MASTER_PORT", [](const WorkerEnv& e) -> Lookup { return std::to_string(e.slice.master.port); },
               read_port},
      number("TORCHELASTIC_RESTART_COUNT", 0, kMax,
             [](WorkerEnv& e) -> std::int64_t& { return e.slice.restart_count; }),
      number("TORCHELASTIC_MAX_RESTARTS", 0, kMax, [](WorkerEnv& e) -> std::int64_t& { return e.max_restarts; }),
      words("TORCHELASTIC_RUN_ID", [](WorkerEnv& e) -> std::string& { return e.run_id.value; }),
      Variable{"TORCHELASTIC_USE_AGENT_STORE",
               [](const WorkerEnv& e) -> Lookup { return e.use_agent_store ? "True" : "False"; }, read_bool},
      words("TORCHELASTIC_ERROR_FILE", [](WorkerEnv& e) -> std::string& { return e.error_file; }),
      number("DDPRUN_ROUND", 0, INT64_MAX, [](WorkerEnv& e) -> std::int64_t& { return e.slice.round.value; }),
      Variable{"DDPRUN_RECORDER_FD",
               [](const WorkerEnv& e) -> Lookup {
                 return e.recorder_fd < 0 ? Lookup() : Lookup(std::to_string(e.recorder_fd));
               },
               read_recorder},
  };
  return variables;
}

Result<void> below(const char* name, std::int64_t value, const char* bound_name, std::int64_t bound) {
  if (value < bound) return {};
  return Error(Errc::invalid_argument, std::string(name) + "=" + std::to_string(value) + " but " + bound_name + "=" +
                                           std::to_string(bound) + ": it must be below");
}

}  // namespace

WorkerEnv WorkerEnv::of(const RankSlice& its_slice, LocalRank local) const {
  WorkerEnv env = *this;
  env.slice = its_slice;
  env.rank = Rank(its_slice.first_rank.value + local.value);
  env.local_rank = local;
  env.role_rank = its_slice.first_role_rank + local.value;
  return env;
}

std::vector<std::string> worker_env_names() {
  std::vector<std::string> names;
  for (const Variable& variable : table()) names.emplace_back(variable.name);
  return names;
}

std::vector<std::pair<std::string, std::string>> to_environment(const WorkerEnv& env) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Variable& variable : table()) {
    if (auto value = variable.write(env)) pairs.emplace_back(variable.name, std::move(*value));
  }
  return pairs;
}

bool in_slurm_step(const EnvLookup& env) {
  constexpr std::int64_t kFirstSpecialStep = 4'294'967'280;
  const auto step = env("SLURM_STEP_ID");
  return step && parse_number("SLURM_STEP_ID", *step, 0, kFirstSpecialStep - 1) && !env("SLURM_PTY_PORT");
}

Result<WorkerEnv> from_environment(const EnvLookup& lookup) {
  WorkerEnv env;
  const auto rank = lookup("RANK");
  if (!rank || rank->empty()) return env;  // nobody started us as one of many
  env.launched = true;
  bool has_group_rank = false;
  bool has_local_rank = false;
  for (const Variable& variable : table()) {
    const auto text = lookup(variable.name);
    if (!text || (text->empty() && !variable.empty_is_a_value)) continue;
    auto read = variable.read(env, variable.name, *text);
    if (!read) return std::move(read).error();
    has_group_rank = has_group_rank || std::string_view(variable.name) == "GROUP_RANK";
    has_local_rank = has_local_rank || std::string_view(variable.name) == "LOCAL_RANK";
  }
  // A launcher that sets RANK alone (mpirun wrappers, Slurm): one worker a node unless it says otherwise.
  if (!has_group_rank) env.slice.group_rank = GroupRank(env.rank.value / env.local_world_size);
  if (!has_local_rank) env.local_rank = LocalRank(env.rank.value % env.local_world_size);
  if (!has_group_rank && env.slice.group_world_size == 1) {
    env.slice.group_world_size = (env.slice.world_size + env.local_world_size - 1) / env.local_world_size;
  }
  for (auto check : {below("RANK", env.rank.value, "WORLD_SIZE", env.slice.world_size),
                     below("LOCAL_RANK", env.local_rank.value, "LOCAL_WORLD_SIZE", env.local_world_size),
                     below("GROUP_RANK", env.slice.group_rank.value, "GROUP_WORLD_SIZE", env.slice.group_world_size),
                     below("ROLE_RANK", env.role_rank, "ROLE_WORLD_SIZE", env.slice.role_world_size)}) {
    if (!check) return std::move(check).error();
  }
  env.slice.first_rank = Rank(env.rank.value - env.local_rank.value);
  env.slice.first_role_rank = env.role_rank - env.local_rank.value;
  if (env.local_world_size > env.slice.world_size) {
    return Error(Errc::invalid_argument, "LOCAL_WORLD_SIZE=" + std::to_string(env.local_world_size) +
                                             " but WORLD_SIZE=" + std::to_string(env.slice.world_size) +
                                             ": it must not be above");
  }
  if (env.slice.world_size > 1 && (env.slice.master.host.empty() || env.slice.master.port == 0)) {
    return Error(Errc::invalid_argument,
                 "WORLD_SIZE=" + std::to_string(env.slice.world_size) +
                     " but MASTER_ADDR or MASTER_PORT is not set: start this program with ddprun, or set both");
  }
  return env;
}

}  // namespace ddprun
