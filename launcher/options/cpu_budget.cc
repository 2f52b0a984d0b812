#include "launcher/options/cpu_budget.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <vector>

#include "common/system.h"
#include "common/worker_env.h"

namespace ddprun::launcher {
namespace {

void take_smaller(std::optional<double>& best, double value) {
  if (value > 0 && (!best || value < *best)) best = value;
}

// "/a/b" -> {"/a/b", "/a", ""}
std::vector<std::string> ancestors(std::string path) {
  std::vector<std::string> out;
  while (path.size() > 1) {
    out.push_back(path);
    path.erase(path.rfind('/'));
  }
  out.emplace_back();
  return out;
}

std::int64_t affinity_cpus() {
  // The mask may be wider than a cpu_set_t: grow until the kernel is content.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(cpus));
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    const bool ok = ::sched_getaffinity(0, size, set) == 0;
    const int count = ok ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (ok && count > 0) return count;
  }
  return std::max<long>(1, ::sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

std::int64_t CpuBudget::usable() const {
  std::int64_t cpus = affinity;
  if (cgroup_quota) cpus = std::min(cpus, static_cast<std::int64_t>(*cgroup_quota));
  if (slurm) cpus = std::min(cpus, *slurm);
  return std::max<std::int64_t>(cpus, 1);
}

std::string CpuBudget::text() const {
  const std::int64_t cpus = usable();
  const bool by_quota = cgroup_quota && *cgroup_quota < static_cast<double>(affinity);
  const bool by_slurm = slurm && *slurm < affinity;
  std::string out = fmt::format("{} CPU{} can be used here", cpus, cpus == 1 ? "" : "s");
  if (by_slurm && *slurm == cpus) return out + " (SLURM_CPUS_PER_TASK or SLURM_CPUS_ON_NODE)";
  if (by_quota) return out + fmt::format(" (the control group's quota is {:.3g})", *cgroup_quota);
  return out;
}

std::optional<std::int64_t> slurm_cpus(const EnvLookup& env) {
  // Within an mpirun these are of the step that mpirun's own daemons are.
  if (env("OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  // "4", of a list like "4(x2),2" of several nodes the first.
  const auto number = [&env](const char* name) -> std::optional<std::int64_t> {
    const std::string text = env(name).value_or("");
    std::int64_t value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc() || value < 1 || value > 1'000'000) return std::nullopt;
    return value;
  };
  std::optional<std::int64_t> cpus = number("SLURM_CPUS_PER_TASK");
  // Outside of a step (a batch script without srun) nobody else runs this node's tasks.
  if (cpus && !in_slurm_step(env)) *cpus *= std::min<std::int64_t>(number("SLURM_TASKS_PER_NODE").value_or(1), 4096);
  if (const auto on_node = number("SLURM_CPUS_ON_NODE")) cpus = std::min(cpus.value_or(*on_node), *on_node);
  return cpus;
}

std::optional<double> cgroup_cpu_quota(const std::string& proc_self_cgroup, const std::string& cgroup_root) {
  std::optional<double> best;
  std::istringstream lines(proc_self_cgroup);
  std::string line;
  while (std::getline(lines, line)) {  // "4:cpu,cpuacct:/job7", "0::/job7"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const auto& group : ancestors(path)) {
        for (const char* mount : {"", "/unified"}) {
          std::istringstream in(read_small_file(cgroup_root + mount + group + "/cpu.max"));
          double quota = 0, period = 0;  // "max 100000" fails to parse: no limit
          if (in >> quota >> period && period > 0) take_smaller(best, quota / period);
        }
      }
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      for (const auto& group : ancestors(path)) {
        for (const std::string& mount : {"/" + controllers, std::string("/cpu")}) {
          const std::string folder = cgroup_root + mount + group;
          std::istringstream in(read_small_file(folder + "/cpu.cfs_quota_us") + " " +
                                read_small_file(folder + "/cpu.cfs_period_us"));
          double quota = 0, period = 0;  // -1 = no limit
          if (in >> quota >> period && quota > 0 && period > 0) take_smaller(best, quota / period);
        }
      }
    }
  }
  return best;
}

CpuBudget cpu_budget() {
  CpuBudget budget;
  budget.affinity = affinity_cpus();
  budget.cgroup_quota = cgroup_cpu_quota(read_small_file("/proc/self/cgroup"), "/sys/fs/cgroup");
  budget.slurm = slurm_cpus(process_environment());
  return budget;
}

std::int64_t threads_per_worker(std::int64_t usable_cpus, std::int64_t workers) {
  return std::max<std::int64_t>(1, usable_cpus / std::max<std::int64_t>(workers, 1));
}

}  // namespace ddprun::launcher
