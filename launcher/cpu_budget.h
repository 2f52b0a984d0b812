#pragma once

#include <cstdint>
#include <optional>
#include <string>

// How many CPUs we may really use: the affinity mask and the control group's quota both count.
namespace ddprun::launcher {

struct CpuBudget {
  std::int64_t affinity = 1;           // CPUs in our affinity mask
  std::optional<double> cgroup_quota;  // CPUs that the tightest control group above us allows; nullopt = no limit

  std::int64_t usable() const;  // at least 1; a quota of 1.5 counts as 1
};

// `proc_self_cgroup`: text of /proc/self/cgroup. `cgroup_root`: normally /sys/fs/cgroup; a parameter for tests.
// Reads cpu.max (v2) and cpu.cfs_quota_us / cpu.cfs_period_us (v1) of our group and all above it.
std::optional<double> cgroup_cpu_quota(const std::string& proc_self_cgroup, const std::string& cgroup_root);

CpuBudget cpu_budget();

// OMP_NUM_THREADS for `workers` on this node that were given none: an equal share, at least 1.
std::int64_t threads_per_worker(std::int64_t usable_cpus, std::int64_t workers);

}  // namespace ddprun::launcher
