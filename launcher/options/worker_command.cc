#include "launcher/options/worker_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "common/signal_names.h"
#include "launcher/options/cpu_budget.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

std::string replace_local_rank(std::string text, const std::string& rank) {
  constexpr std::string_view kMacro = "${local_rank}";
  for (auto at = text.find(kMacro); at != std::string::npos; at = text.find(kMacro, at + rank.size())) {
    text.replace(at, kMacro.size(), rank);
  }
  return text;
}

std::string signal_list(const std::vector<int>& signals) {
  std::string out;
  for (const int number : signals) out += (out.empty() ? "" : ",") + signal_name(number);
  return out;
}

}  // namespace

EnvironmentMap environment_map(const char* const* environment) {
  EnvironmentMap out;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const auto equals = entry.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    out.emplace(entry.substr(0, equals), entry.substr(equals + 1));  // the first of two wins, as with getenv
  }
  return out;
}

std::vector<std::string> environment_strings(const EnvironmentMap& environment) {
  std::vector<std::string> out;
  out.reserve(environment.size());
  for (const auto& [name, value] : environment) out.push_back(name + "=" + value);
  return out;
}

WorkerCommand::WorkerCommand(const LaunchOptions& options, Program program, EnvironmentMap inherited,
                             std::int64_t usable_cpus, bool fewer_than_seen)
    : after_program_(options.program.arguments),
      local_rank_argument_(options.program.local_rank_argument),
      program_(std::move(program)),
      base_(std::move(inherited)),
      virtual_local_rank_(options.workers.virtual_local_rank) {
  everybody_.local_world_size = options.node.nproc;
  everybody_.role_name = options.node.role;
  everybody_.max_restarts = options.job.max_restarts;
  everybody_.run_id = options.rdzv.run_id;
  everybody_.use_agent_store = !options.workers.bind_master_port;
  if ((options.node.nproc > 1 || fewer_than_seen) && !base_.contains("OMP_NUM_THREADS")) {
    omp_threads_ = threads_per_worker(usable_cpus, options.node.nproc);
    base_["OMP_NUM_THREADS"] = std::to_string(omp_threads_);
  }
  base_.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  base_["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signal_list(options.supervision.signals_to_handle);
  if (program_.wants_unbuffered) base_.try_emplace("PYTHONUNBUFFERED", "1");
  if (!options.workers.devices.empty())
    base_["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(options.workers.devices, ","));
  // The recorder's descriptor is ours to hand out: one of an outer launcher means nothing to our workers.
  base_.erase("DDPRUN_RECORDER_FD");
  base_.erase("DDPRUN_HOST_REPORT_FD");
  for (const auto& [name, value] : options.workers.environment) base_[name] = value;
}

std::vector<std::string> WorkerCommand::arguments(LocalRank local_rank) const {
  const std::string rank = std::to_string(local_rank.value);
  std::vector<std::string> out = program_.leading;
  for (std::size_t i = 1; i < out.size(); ++i) out[i] = replace_local_rank(std::move(out[i]), rank);
  if (local_rank_argument_ == LocalRankArgument::underscore) {
    out.push_back("--local_rank=" + rank);
  } else if (local_rank_argument_ != LocalRankArgument::none) {
    out.push_back("--local-rank=" + rank);
  }
  for (const auto& argument : after_program_) out.push_back(replace_local_rank(argument, rank));
  return out;
}

Result<EnvironmentMap> WorkerCommand::environment(const WorkerEnv& env) const {
  EnvironmentMap out = base_;
  for (auto& [name, value] : to_environment(env)) out[name] = std::move(value);
  if (!virtual_local_rank_) return out;
  out["LOCAL_RANK"] = "0";
  const auto hip = base_.find("HIP_VISIBLE_DEVICES");
  const bool use_hip = hip != base_.end() && !hip->second.empty();
  const auto list = use_hip ? hip : base_.find("CUDA_VISIBLE_DEVICES");
  std::string device = std::to_string(env.local_rank.value);
  if (list != base_.end()) {
    const auto devices = split(list->second, ',');
    if (env.local_rank.value >= static_cast<std::int64_t>(devices.size())) {
      return Error(Errc::invalid_argument,
                   fmt::format("--virtual-local-rank: local rank {} has no device of its own in {}={}",
                               env.local_rank.value, list->first, list->second));
    }
    device = trimmed(devices[static_cast<std::size_t>(env.local_rank.value)]);
  }
  out["CUDA_VISIBLE_DEVICES"] = device;
  if (use_hip) out["HIP_VISIBLE_DEVICES"] = device;
  return out;
}

LocalRankArgument choose_local_rank_argument(LocalRankArgument asked, const std::string& script) {
  if (asked != LocalRankArgument::by_script) return asked;
  std::ifstream in(script, std::ios::binary);
  std::ostringstream text;
  if (!script.empty() && in) text << in.rdbuf();
  return wants_underscore_local_rank(text.str()) ? LocalRankArgument::underscore : LocalRankArgument::hyphen;
}

}  // namespace ddprun::launcher
