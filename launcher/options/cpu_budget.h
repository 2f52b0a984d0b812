#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/options.h"

// How many CPUs we may really use: the affinity mask, the control group's quota and what Slurm gave us all count.
namespace ddprun::launcher {

struct CpuBudget {
  std::int64_t affinity = 1;           // CPUs in our affinity mask
  std::optional<double> cgroup_quota;  // CPUs that the tightest control group above us allows; nullopt = no limit

  std::optional<std::int64_t> slurm;  // CPUs of our task by Slurm, which binds to them only where it was set up to

  std::int64_t usable() const;  // at least 1; a quota of 1.5 counts as 1
  // "1 CPU can be used here (the control group's quota)": the reason where that is less than the affinity mask.
  std::string text() const;
};

// `proc_self_cgroup`: text of /proc/self/cgroup. `cgroup_root`: normally /sys/fs/cgroup; a parameter for tests.
// Reads cpu.max (v2) and cpu.cfs_quota_us / cpu.cfs_period_us (v1) of our group and all above it.
std::optional<double> cgroup_cpu_quota(const std::string& proc_self_cgroup, const std::string& cgroup_root);

// From SLURM_CPUS_PER_TASK and SLURM_CPUS_ON_NODE. In a batch script all tasks of its node are ours.
std::optional<std::int64_t> slurm_cpus(const EnvLookup& env);

CpuBudget cpu_budget();

// OMP_NUM_THREADS for `workers` on this node that were given none: an equal share, at least 1.
std::int64_t threads_per_worker(std::int64_t usable_cpus, std::int64_t workers);

}  // namespace ddprun::launcher
