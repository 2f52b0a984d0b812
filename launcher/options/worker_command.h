#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/worker_env.h"
#include "launcher/options/options.h"
#include "launcher/options/program.h"

// LaunchOptions + Program + a worker's place -> its argv and environment. Pure.
namespace ddprun::launcher {

using EnvironmentMap = std::map<std::string, std::string>;

// "NAME=value" strings, as execve and `environ` have them. A string without '=' is skipped.
EnvironmentMap environment_map(const char* const* environment);
std::vector<std::string> environment_strings(const EnvironmentMap& environment);

class WorkerCommand {
 public:
  // `inherited`: our own environment. `usable_cpus`: of this node, for OMP_NUM_THREADS; `fewer_than_seen`: a program
  // that counts CPUs finds more than that (a quota, or what Slurm gave without binding us).
  WorkerCommand(const LaunchOptions& options, Program program, EnvironmentMap inherited, std::int64_t usable_cpus,
                bool fewer_than_seen = false);

  const Program& program() const { return program_; }

  // argv of this worker: `${local_rank}` replaced in every argument behind the program; the legacy --local-rank=N.
  std::vector<std::string> arguments(LocalRank local_rank) const;

  // What a worker of this node is told about itself in such a round. The group adds the paths and descriptors it makes.
  WorkerEnv place(const RankSlice& slice, LocalRank local_rank) const { return everybody_.of(slice, local_rank); }

  // The whole environment of this worker. Errors: invalid_argument when --virtual-local-rank has fewer devices than
  // workers.
  Result<EnvironmentMap> environment(const WorkerEnv& env) const;

  // The value that OMP_NUM_THREADS gets from us; 0 = it is not ours to set (given by the user, or one worker that sees
  // what it may use).
  std::int64_t omp_threads() const { return omp_threads_; }

 private:
  std::vector<std::string> after_program_;
  LocalRankArgument local_rank_argument_;
  Program program_;
  EnvironmentMap base_;  // what all workers share
  WorkerEnv everybody_;  // the same
  bool virtual_local_rank_;
  std::int64_t omp_threads_ = 0;
};

// Reads the script to choose a spelling, for LocalRankArgument::by_script. A script that cannot be read gets a hyphen.
LocalRankArgument choose_local_rank_argument(LocalRankArgument asked, const std::string& script);

}  // namespace ddprun::launcher
