#include "worker/ranks/lone_copy.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/worker_env.h"

namespace ddprun::trainer {
namespace {

// How those who start copies number them; the first that did decides, for an mpirun inside of a Slurm job leaves the
// variables of Slurm's step that its own daemons are. Sources: mpirun of Open MPI 4 and 5, MVAPICH, Hydra (its
// MPI_LOCALNRANKS tells it from Slurm's PMI), srun(1), JSM of LSF, flux-environment(7).
struct Starter {
  const char* name;
  const char* rank;
  const char* size;        // copies in all
  const char* local_size;  // of them on this node; "" = it has none
  const char* per_node;    // one process a node, in its words
};
constexpr std::array kStarters = {
    Starter{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
            "mpirun -N 1 --bind-to none"},
    Starter{"mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "mpirun -ppn 1"},
    Starter{"mpiexec", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS", "mpiexec -ppn 1"},
    Starter{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "srun --ntasks-per-node=1"},
    Starter{"mpiexec", "PMI_RANK", "PMI_SIZE", "", "mpiexec -ppn 1"},
    Starter{"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", "jsrun -r 1"},
    Starter{"flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "", "flux run --tasks-per-node=1"},
};

std::optional<std::int64_t> number(const EnvLookup& env, const std::string& name) {
  const auto text = name.empty() ? std::nullopt : env(name);
  std::int64_t value = 0;
  if (!text) return std::nullopt;
  const auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (failure != std::errc() || end != text->data() + text->size() || value < 0) return std::nullopt;
  return value;
}

// nullopt: it did not start us.
std::optional<std::int64_t> copies(const EnvLookup& env, const Starter& starter, std::int64_t rank) {
  if (std::string_view(starter.name) != "srun") return number(env, starter.size);
  // SLURM_NTASKS is the whole job's, whose batch script (SLURM_PROCID is 0 there) runs once.
  if (env("SLURM_PTY_PORT") || (rank == 0 && env("SLURM_STEP_ID") && !in_slurm_step(env))) return std::nullopt;
  if (const auto size = number(env, starter.size)) return size;
  return rank > 0 || in_slurm_step(env) ? number(env, "SLURM_NTASKS") : std::nullopt;
}

std::optional<std::int64_t> nodes(const EnvLookup& env, const Starter& starter, std::int64_t size) {
  if (const auto local = number(env, starter.local_size); local && *local > 0) return (size + *local - 1) / *local;
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "FLUX_JOB_NNODES"}) {
    if (const auto count = number(env, name); count && *count > 0) return count;
  }
  return std::nullopt;
}

Error refusal(const std::string& who, const std::string& command) {
  return Error(Errc::invalid_argument,
               fmt::format("{}; without a launcher each trains by itself and overwrites the others' files. For one "
                           "training of all: {} trainer --config FILE. To train in each copy by itself: --single",
                           who, command));
}

}  // namespace

Result<void> check_lone_copy(const EnvLookup& env) {
  for (const Starter& starter : kStarters) {
    const auto rank = number(env, starter.rank);
    if (!rank) continue;
    const auto size = copies(env, starter, *rank);
    if (!size) continue;
    if (*size < 2) return {};
    const std::int64_t hosts = nodes(env, starter, *size).value_or(1);
    const std::string who =
        fmt::format("this is one of {} copies that {} started ({}={})", *size, starter.name, starter.rank, *rank);
    if (hosts == 1) return refusal(who, fmt::format("ddprun --nproc-per-node={}", *size));
    return refusal(who, fmt::format("{} ddprun --nnodes={} --nproc-per-node={} --rdzv-backend=c10d "
                                    "--rdzv-endpoint=FIRST-HOST:29400",
                                    starter.per_node, hosts, (*size + hosts - 1) / hosts));
  }
  // PMIx tells a process its rank only.
  if (const auto rank = number(env, "PMIX_RANK"); rank && *rank > 0) {
    return refusal(fmt::format("this is one of several copies (PMIX_RANK={})", *rank), "ddprun --nproc-per-node=N");
  }
  return {};
}

}  // namespace ddprun::trainer
