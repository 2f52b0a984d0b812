#include "launcher/cpu_budget.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace ddprun::launcher {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

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
  return std::max<std::int64_t>(cpus, 1);
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
          std::istringstream in(read_text(cgroup_root + mount + group + "/cpu.max"));
          double quota = 0, period = 0;  // "max 100000" fails to parse: no limit
          if (in >> quota >> period && period > 0) take_smaller(best, quota / period);
        }
      }
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      for (const auto& group : ancestors(path)) {
        for (const std::string& mount : {"/" + controllers, std::string("/cpu")}) {
          const std::string folder = cgroup_root + mount + group;
          std::istringstream in(read_text(folder + "/cpu.cfs_quota_us") + " " +
                                read_text(folder + "/cpu.cfs_period_us"));
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
  budget.cgroup_quota = cgroup_cpu_quota(read_text("/proc/self/cgroup"), "/sys/fs/cgroup");
  return budget;
}

std::int64_t threads_per_worker(std::int64_t usable_cpus, std::int64_t workers) {
  return std::max<std::int64_t>(1, usable_cpus / std::max<std::int64_t>(workers, 1));
}

}  // namespace ddprun::launcher
