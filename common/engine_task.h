#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/options.h"
#include "common/result.h"

// What a cluster's engine (srun, mpirun of Open MPI, mpiexec of MPICH's hydra) says about the process that it started,
// in variables. Pure: the environment comes in. All names below were seen on the real engines (Slurm 22.05, Open MPI
// 4.1, MPICH 4.0).
namespace ddprun {

enum class Engine : std::uint8_t { none, slurm, openmpi, hydra };

std::string_view engine_name(Engine engine);     // "Slurm", "Open MPI", "MPICH"
std::string_view engine_starter(Engine engine);  // "srun", "mpirun", "mpiexec"
// "auto" (nullopt), "none", "slurm", "openmpi", "hydra".
Result<std::optional<Engine>> parse_engine(std::string_view word);

// One of the processes ("tasks") that an engine started together.
struct EngineTask {
  Engine engine = Engine::none;
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::int64_t local_rank = 0;
  std::int64_t local_size = 1;  // tasks on this node
  std::int64_t node = 0;        // index; -1: the engine does not say (Open MPI and hydra with several tasks a node)
  std::int64_t nodes = 1;       // the same: 0
  std::string job;  // names the step, also over a requeue: "slurm-7.0.1", "ompi-3072"; hydra: "" (asked for)
  std::vector<std::string> hosts;  // of the step, node 0 first; Slurm only
  std::string host;                // this node, in Slurm's words
  std::uint16_t first_port = 0;    // Slurm: the first of kEnginePorts that this job may use; else 0
  std::string topology_key;        // the switch above this node, where Slurm knows it
  std::string meeting;             // Open MPI: its daemon's URI, to find out which of our addresses others reach

  bool one_a_node() const { return local_size == 1 && (nodes == 0 || size == nodes); }
};

// Below the ephemeral ports (32768..), and jobs that follow each other have ports of their own.
inline constexpr std::uint16_t kEnginePorts = 8;
std::uint16_t slurm_first_port(std::int64_t job_id);

// nullopt: no engine started this process as one of its tasks; nullopt too where `wanted` is none. Open MPI is asked
// first, then hydra, then Slurm: mpirun inside of a Slurm job leaves the variables of the step that its own daemons
// are, with wrong numbers. Errors: malformed (an engine's variable), invalid_argument (`wanted` did not start us).
Result<std::optional<EngineTask>> find_engine_task(const EnvLookup& env, std::optional<Engine> wanted);

// A process of a Slurm job that no srun started: the batch script, salloc's shell, or the shell of `srun --pty`.
struct SlurmShell {
  enum class Kind : std::uint8_t { batch, salloc, pty } kind = Kind::batch;
  std::int64_t nodes = 1;
  std::int64_t tasks = 1;  // of a pty's step
  std::string node_list;
};
std::optional<SlurmShell> find_slurm_shell(const EnvLookup& env);

}  // namespace ddprun
