#include "common/engine_task.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "common/slurm_list.h"
#include "common/worker_env.h"

namespace ddprun {
namespace {

constexpr std::int64_t kMany = 1'000'000'000;

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Variables that an engine always sets: one that is missing or no number is a broken environment, not a default.
class Numbers {
 public:
  Numbers(const EnvLookup& env, Engine engine) : env_(env), engine_(engine) {}

  std::int64_t get(const char* name, std::int64_t min, std::int64_t max) {
    const auto text = env_(name);
    const auto value = text ? whole_number(*text) : std::nullopt;
    if (value && *value >= min && *value <= max) return *value;
    if (!failed_) {
      failed_ =
          Error(Errc::malformed,
                fmt::format("{} started this, but {} {}; --engine=none does without it", engine_starter(engine_), name,
                            text ? fmt::format("is '{}', which is not from {} to {}", *text, min, max)
                                 : std::string("is not set")));
    }
    return min;
  }
  const std::optional<Error>& failed() const { return failed_; }

 private:
  const EnvLookup& env_;
  Engine engine_;
  std::optional<Error> failed_;
};

// mpirun says how many tasks there are here, not on how many nodes they all are.
void count_nodes(EngineTask& task) {
  const bool one_host = task.local_size == task.size;
  const bool one_a_node = task.local_size == 1;
  task.nodes = one_host ? 1 : one_a_node ? task.size : 0;
  task.node = one_host ? 0 : one_a_node ? task.rank : -1;
}

Result<std::optional<EngineTask>> open_mpi(const EnvLookup& env) {
  if (!env("OMPI_COMM_WORLD_SIZE")) return std::optional<EngineTask>();
  Numbers numbers(env, Engine::openmpi);
  EngineTask task;
  task.engine = Engine::openmpi;
  task.size = numbers.get("OMPI_COMM_WORLD_SIZE", 1, kMany);
  task.rank = numbers.get("OMPI_COMM_WORLD_RANK", 0, task.size - 1);
  task.local_size =
      env("OMPI_COMM_WORLD_LOCAL_SIZE") ? numbers.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1, task.size) : task.size;
  task.local_rank =
      env("OMPI_COMM_WORLD_LOCAL_RANK") ? numbers.get("OMPI_COMM_WORLD_LOCAL_RANK", 0, task.local_size - 1) : task.rank;
  if (numbers.failed()) return *numbers.failed();
  count_nodes(task);
  task.job = "ompi-" + env("PMIX_NAMESPACE").value_or(env("OMPI_MCA_ess_base_jobid").value_or(""));
  task.meeting = env("OMPI_MCA_orte_hnp_uri").value_or("");
  return std::optional<EngineTask>(std::move(task));
}

Result<std::optional<EngineTask>> hydra(const EnvLookup& env) {
  const bool wired = env("PMI_FD") || env("PMI_PORT");
  // Slurm's own PMI (srun --mpi=pmi2) has no MPI_LOCALNRANKS.
  if (!wired || !env("PMI_SIZE") || !env("MPI_LOCALNRANKS")) return std::optional<EngineTask>();
  Numbers numbers(env, Engine::hydra);
  EngineTask task;
  task.engine = Engine::hydra;
  task.size = numbers.get("PMI_SIZE", 1, kMany);
  task.rank = numbers.get("PMI_RANK", 0, task.size - 1);
  task.local_size = numbers.get("MPI_LOCALNRANKS", 1, task.size);
  task.local_rank = numbers.get("MPI_LOCALRANKID", 0, task.local_size - 1);
  if (numbers.failed()) return *numbers.failed();
  count_nodes(task);
  return std::optional<EngineTask>(std::move(task));
}

// "switch" is in the pattern where Slurm's topology plugin knows one: "s0.s1.node1", "switch.switch.node".
std::string topology_key(const EnvLookup& env) {
  const std::string address = env("SLURM_TOPOLOGY_ADDR").value_or("");
  const std::string pattern = env("SLURM_TOPOLOGY_ADDR_PATTERN").value_or("");
  const auto dot = address.rfind('.');
  if (pattern.find("switch") == std::string::npos || dot == std::string::npos) return "";
  return address.substr(0, dot);
}

Result<std::optional<EngineTask>> slurm(const EnvLookup& env) {
  if (!in_slurm_step(env) || !env("SLURM_PROCID")) return std::optional<EngineTask>();
  // SLURM_NTASKS and SLURM_NNODES are the whole job's where a step is smaller.
  const auto name = [&env](const char* step, const char* other) { return env(step) ? step : other; };
  Numbers numbers(env, Engine::slurm);
  EngineTask task;
  task.engine = Engine::slurm;
  task.size = numbers.get(name("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1, kMany);
  task.rank = numbers.get("SLURM_PROCID", 0, task.size - 1);
  const bool whole = env("SLURM_STEP_NUM_NODES") || env("SLURM_NNODES");
  if (whole) task.nodes = numbers.get(name("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), 1, kMany);
  if (whole) task.node = numbers.get("SLURM_NODEID", 0, task.nodes - 1);
  if (env("SLURM_LOCALID")) task.local_rank = numbers.get("SLURM_LOCALID", 0, kMany);
  if (numbers.failed()) return *numbers.failed();
  if (const auto counts = env("SLURM_STEP_TASKS_PER_NODE"); counts && whole) {
    const auto all = expand_counts(*counts);
    if (!all) return Error(all.error()).with_context("SLURM_STEP_TASKS_PER_NODE");
    if (static_cast<std::size_t>(task.node) < all->size())
      task.local_size = (*all)[static_cast<std::size_t>(task.node)];
  } else {
    task.local_size = (task.size + task.nodes - 1) / task.nodes;
  }
  if (const auto list = env("SLURM_STEP_NODELIST")) {
    auto hosts = expand_host_list(*list);
    if (!hosts) return std::move(hosts).error().with_context("SLURM_STEP_NODELIST");
    task.hosts = std::move(*hosts);
  }
  const std::string job = env("SLURM_JOB_ID").value_or("0");
  task.job =
      fmt::format("slurm-{}.{}.{}", job, env("SLURM_STEP_ID").value_or("0"), env("SLURM_RESTART_COUNT").value_or("0"));
  task.first_port = slurm_first_port(whole_number(job).value_or(0));
  task.host = env("SLURMD_NODENAME").value_or("");
  task.topology_key = topology_key(env);
  return std::optional<EngineTask>(std::move(task));
}

}  // namespace

std::string_view engine_name(Engine engine) {
  constexpr std::string_view kNames[] = {"none", "Slurm", "Open MPI", "MPICH"};
  return kNames[static_cast<std::size_t>(engine)];
}

std::string_view engine_starter(Engine engine) {
  constexpr std::string_view kNames[] = {"nobody", "srun", "mpirun", "mpiexec"};
  return kNames[static_cast<std::size_t>(engine)];
}

Result<std::optional<Engine>> parse_engine(std::string_view word) {
  if (word == "auto") return std::optional<Engine>();
  if (word == "none") return std::optional<Engine>(Engine::none);
  if (word == "slurm") return std::optional<Engine>(Engine::slurm);
  if (word == "openmpi") return std::optional<Engine>(Engine::openmpi);
  if (word == "hydra") return std::optional<Engine>(Engine::hydra);
  return Error(Errc::invalid_argument, fmt::format("'{}' is none of auto, none, slurm, openmpi and hydra", word));
}

std::uint16_t slurm_first_port(std::int64_t job_id) {
  constexpr std::int64_t kFirst = 20'000, kJobs = 1'500;
  static_assert(kFirst + kJobs * kEnginePorts <= 32'768);
  return static_cast<std::uint16_t>(kFirst + (job_id < 0 ? 0 : job_id % kJobs) * kEnginePorts);
}

Result<std::optional<EngineTask>> find_engine_task(const EnvLookup& env, std::optional<Engine> wanted) {
  if (wanted == Engine::none) return std::optional<EngineTask>();
  struct {
    Engine engine;
    Result<std::optional<EngineTask>> (*find)(const EnvLookup&);
  } const known[] = {{Engine::openmpi, open_mpi}, {Engine::hydra, hydra}, {Engine::slurm, slurm}};
  for (const auto& one : known) {
    if (wanted && *wanted != one.engine) continue;
    auto found = one.find(env);
    if (!found || *found) return found;
  }
  if (!wanted) return std::optional<EngineTask>();
  return Error(Errc::invalid_argument, fmt::format("{} is asked for, but {} did not start this process",
                                                   engine_name(*wanted), engine_starter(*wanted)));
}

std::optional<SlurmShell> find_slurm_shell(const EnvLookup& env) {
  if (!env("SLURM_JOB_ID") || in_slurm_step(env)) return std::nullopt;
  const auto number = [&env](std::initializer_list<const char*> names) -> std::int64_t {
    for (const char* name : names) {
      const auto value = whole_number(env(name).value_or(""));
      if (value && *value > 0) return *value;
    }
    return 1;
  };
  SlurmShell shell;
  const auto step = env("SLURM_STEP_ID").value_or("");
  // salloc's own shell may run in a step with a terminal too (use_interactive_step), numbered as no srun's is.
  const bool special = whole_number(step).value_or(0) >= 4'294'967'280;
  if (env("SLURM_PTY_PORT") && !step.empty() && !special) {
    shell.kind = SlurmShell::Kind::pty;
    shell.nodes = number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
    shell.tasks = number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
    shell.node_list = env("SLURM_STEP_NODELIST").value_or("");
    return shell;
  }
  shell.kind = env("SLURMD_NODENAME") && !special ? SlurmShell::Kind::batch : SlurmShell::Kind::salloc;
  shell.nodes = number({"SLURM_JOB_NUM_NODES", "SLURM_NNODES"});
  shell.node_list = env("SLURM_JOB_NODELIST").value_or(env("SLURM_NODELIST").value_or(""));
  return shell;
}

}  // namespace ddprun
