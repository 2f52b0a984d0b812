#include "launcher/options/preflight.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/clock.h"
#include "common/exit_code.h"
#include "common/lookup.h"
#include "common/options.h"
#include "common/system.h"
#include "common/tcp.h"
#include "launcher/options/cpu_budget.h"
#include "launcher/options/device.h"
#include "launcher/options/option_values.h"
#include "launcher/output/log_tree.h"

namespace ddprun::launcher {
namespace {

using Level = Finding::Level;
constexpr std::uint64_t kMiB = 1ULL << 20;
constexpr const char* kLogDirectory = "log directory";

std::optional<std::uint64_t> free_bytes(std::string folder) {
  struct statvfs status {};
  while (::statvfs(folder.empty() ? "." : folder.c_str(), &status) != 0) {
    const auto slash = folder.rfind('/');
    if (errno != ENOENT || slash == std::string::npos || folder == "/") return std::nullopt;
    folder.resize(slash == 0 ? 1 : slash);
  }
  if (status.f_blocks == 0) return std::nullopt;  // /proc and its kind count no blocks
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

std::vector<std::string> addresses_of(const std::string& name) {
  constexpr std::chrono::seconds kPatience{20};  // resolv.conf's default: two tries of 5 s for each server
  auto found = Lookup(name).wait(SteadyClock::now() + kPatience);
  return found ? std::move(*found) : std::vector<std::string>();
}

std::vector<std::string> interface_names() {
  std::vector<std::string> out;
  struct if_nameindex* list = ::if_nameindex();
  if (list == nullptr) return out;
  for (const struct if_nameindex* entry = list; entry->if_index != 0; ++entry) out.emplace_back(entry->if_name);
  ::if_freenameindex(list);
  return out;
}

// nullopt: there is none.
std::optional<std::uint64_t> soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::int64_t threads_of_user(uid_t user) {
  std::int64_t count = 0;
  std::error_code failure;
  std::filesystem::directory_iterator entry("/proc", failure);
  for (; !failure && entry != std::filesystem::directory_iterator(); entry.increment(failure)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream status(entry->path() / "status");
    bool ours = false;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Uid:")) ours = std::strtoul(line.c_str() + 4, nullptr, 10) == user;
      if (ours && line.starts_with("Threads:")) count += std::strtol(line.c_str() + 8, nullptr, 10);
    }
  }
  return count;
}

std::string megabytes(std::uint64_t bytes) { return fmt::format("{} MiB", bytes / kMiB); }

class Judge {
 public:
  Judge(const HostState& host, const LaunchOptions& options) : host_(host), options_(options) {}

  std::vector<Finding> run() {
    gpus();
    cpus();
    open_files();
    processes();
    disk();
    shared_memory();
    name();
    interface();
    limits();
    inherited_limits();
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.level > b.level; });
    return std::move(findings_);
  }

 private:
  void add(Level level, std::string subject, std::string text) {
    findings_.push_back(Finding{level, std::move(subject), std::move(text)});
  }
  void fail(int code, std::string subject, std::string text) {
    findings_.push_back(Finding{Level::error, std::move(subject), std::move(text), code});
  }

  void gpus() {
    if (!host_.gpus) {
      if (host_.gpu_device_files) {
        add(Level::warning, "GPUs",
            fmt::format("/dev/nvidia0 is there, but the driver does not answer: {}", host_.gpu_problem));
      } else {
        add(Level::ok, "GPUs", "none: " + host_.gpu_problem);
      }
      if (!options_.workers.devices.empty()) {
        add(Level::warning, "GPUs",
            fmt::format("--devices={} only sets CUDA_VISIBLE_DEVICES here: no GPU of NVIDIA's is found",
                        fmt::join(options_.workers.devices, ",")));
      }
      return;
    }
    std::int64_t usable = host_.visible_gpus.value_or(*host_.gpus);
    std::int64_t instances = host_.mig_instances;
    if (!options_.workers.devices.empty()) {
      instances = mig_instances(options_.workers.devices);
      usable = std::min(*host_.gpus + instances, std::int64_t(options_.workers.devices.size()));
    }
    for (const auto& device : options_.workers.devices) {
      const bool index = device.find_first_not_of("0123456789") == std::string::npos && device.size() < 10;
      if (index && std::stoll(device) >= *host_.gpus) {
        fail(exit_code::kUsage, "GPUs",
             fmt::format("--devices: there is no GPU {}: this host has {}", device, *host_.gpus));
        return;
      }
    }
    if (instances > 1 && !options_.workers.virtual_local_rank && options_.node.nproc > usable - instances + 1) {
      add(Level::warning, "GPUs",
          fmt::format("{} workers, but CUDA shows a process only one of the {} MIG instances that are listed; with "
                      "--virtual-local-rank each worker gets one of its own",
                      options_.node.nproc, instances));
      return;
    }
    if (usable > 0 && options_.node.nproc > usable) {
      add(Level::warning, "GPUs",
          fmt::format("{} workers, but {} of this host's {} GPUs can be seen: a worker whose LOCAL_RANK is {} or more "
                      "finds no device (--nproc-per-node=gpu starts one worker for each)",
                      options_.node.nproc, usable, *host_.gpus, usable));
      return;
    }
    add(Level::ok, "GPUs", fmt::format("{} of {} can be seen", usable, *host_.gpus));
  }

  void cpus() {
    if (options_.node.nproc > 1 && host_.usable_cpus == 1 && host_.online_cpus > 1) {
      add(Level::warning, "CPUs",
          fmt::format("all {} workers share one of this host's {} CPUs: the affinity mask or the control group says so "
                      "(under Open MPI: mpirun --bind-to none; under Slurm: --cpus-per-task)",
                      options_.node.nproc, host_.online_cpus));
      return;
    }
    add(Level::ok, "CPUs", fmt::format("{} of {} can be used", host_.usable_cpus, host_.online_cpus));
  }

  // Three pipes or terminals, a pidfd, two log files and a recorder a worker; a connection to the store for each
  // worker of the job on the host of group rank 0.
  void open_files() {
    const std::int64_t needed = 64 + options_.node.nproc * 8;
    if (host_.open_files_soft < needed) {
      std::string text =
          fmt::format("the limit is {} (at most {}), about {} are needed for {} workers; raise it with ulimit -n",
                      host_.open_files_soft, host_.open_files_hard, needed, options_.node.nproc);
      if (host_.open_files_hard < needed) {
        fail(exit_code::kPermanent, "open files", std::move(text));
      } else {
        add(Level::warning, "open files", std::move(text));
      }
      return;
    }
    add(Level::ok, "open files", fmt::format("limit {}", host_.open_files_soft));
  }

  // Threads count too, and a worker of PyTorch has a dozen before its first step.
  void processes() {
    const std::int64_t left = host_.processes_soft - host_.processes_in_use;
    if (host_.processes_soft > 0 && left < options_.node.nproc * 12 + 16) {
      add(Level::warning, "processes",
          fmt::format("the limit is {} processes and threads for this user, {} are there already and {} worker{} with "
                      "their threads are to be started; raise it with ulimit -u",
                      host_.processes_soft, host_.processes_in_use, options_.node.nproc,
                      options_.node.nproc == 1 ? "" : "s"));
      return;
    }
    add(Level::ok, "processes",
        host_.processes_soft > 0 ? fmt::format("limit {}", host_.processes_soft) : std::string("no limit"));
  }

  void disk() {
    if (!host_.log_dir_free_bytes) return;
    if (*host_.log_dir_free_bytes < 64 * kMiB) {
      add(Level::warning, kLogDirectory, fmt::format("only {} are free there", megabytes(*host_.log_dir_free_bytes)));
      return;
    }
    add(Level::ok, kLogDirectory, megabytes(*host_.log_dir_free_bytes) + " free");
  }

  void shared_memory() {
    if (!host_.shm_size_bytes) {
      add(Level::warning, "shared memory", "/dev/shm is not there: NCCL and data loaders cannot share memory");
      return;
    }
    if (options_.node.nproc > 1 && *host_.shm_size_bytes <= 64 * kMiB) {
      add(Level::warning, "shared memory",
          fmt::format("/dev/shm has {} (the default of containers): NCCL and data loaders with workers need more "
                      "(docker --shm-size=1g, Kubernetes: an emptyDir of medium Memory)",
                      megabytes(*host_.shm_size_bytes)));
      return;
    }
    if (options_.node.nproc > 1 && host_.shm_free_bytes && *host_.shm_free_bytes < 64 * kMiB) {
      add(Level::warning, "shared memory",
          fmt::format("/dev/shm has {}, of which {} are free: what jobs that were killed left may lie there "
                      "(ls -l /dev/shm)",
                      megabytes(*host_.shm_size_bytes), megabytes(*host_.shm_free_bytes)));
      return;
    }
    add(Level::ok, "shared memory", megabytes(*host_.shm_size_bytes));
  }

  // Our own protocols need no name, but Gloo and others ask for the address of the host's name.
  void name() {
    if (options_.job.nnodes_max == 1 || !host_.host_addresses) return;
    const auto& addresses = *host_.host_addresses;
    if (addresses.empty()) {
      add(Level::warning, "host name",
          fmt::format("'{}' has no address: Gloo needs one, or --network-interface=NAME", host_.host_name));
    } else if (std::all_of(addresses.begin(), addresses.end(),
                           [](const std::string& address) { return is_loopback(address); })) {
      add(Level::warning, "host name",
          fmt::format("'{}' is {} here (see /etc/hosts): Gloo would offer that to other nodes; give "
                      "--network-interface=NAME",
                      host_.host_name, addresses.front()));
    } else {
      add(Level::ok, "host name", fmt::format("{} is {}", host_.host_name, fmt::join(addresses, ", ")));
    }
  }

  void interface() {
    if (options_.node.network_interface.empty()) return;
    const auto& all = host_.interfaces;
    if (std::find(all.begin(), all.end(), options_.node.network_interface) == all.end()) {
      fail(exit_code::kUsage, "network interface",
           fmt::format("--network-interface: there is no '{}' here; there are {}", options_.node.network_interface,
                       fmt::join(all, ", ")));
      return;
    }
    add(Level::ok, "network interface", options_.node.network_interface);
  }

  // Limits of the shell that the workers inherit and that end them late, in the middle of the work.
  void inherited_limits() {
    if (host_.file_size_bytes) {
      add(Level::warning, "file size",
          fmt::format("no file of the workers may be larger than {} bytes, checkpoints and logs included; ulimit -f "
                      "unlimited",
                      *host_.file_size_bytes));
    }
    if (host_.cpu_seconds) {
      add(Level::warning, "CPU time",
          fmt::format(
              "a worker is ended after {} s of CPU time; ulimit -t unlimited (login nodes set it: is this one?)",
              *host_.cpu_seconds));
    }
    if (host_.address_space_bytes && host_.gpus.value_or(0) > 0) {
      add(Level::warning, "address space",
          fmt::format("the limit is {}, and CUDA reserves far more than it uses: a worker may fail at its first CUDA "
                      "call; ulimit -v unlimited",
                      megabytes(*host_.address_space_bytes)));
    }
    if (host_.infiniband && host_.locked_memory_bytes && *host_.locked_memory_bytes < 1024 * kMiB) {
      add(Level::warning, "locked memory",
          fmt::format("the limit is {}, and NCCL locks its buffers for the RDMA devices that are here; ulimit -l "
                      "unlimited (systemd, Slurm: LimitMEMLOCK=infinity of the daemon)",
                      megabytes(*host_.locked_memory_bytes)));
    }
  }

  void limits() {
    for (const auto& [resource, value] : options_.workers.limits) {
      if (resource == RLIMIT_AS && host_.gpus.value_or(0) > 0) {
        add(Level::warning, "worker limits",
            "--worker-limit: CUDA reserves far more address space than it uses; a worker with an address-space limit "
            "may fail at its first CUDA call (limit the control group's memory instead)");
      }
    }
  }

  const HostState& host_;
  const LaunchOptions& options_;
  std::vector<Finding> findings_;
};

}  // namespace

std::optional<std::string> interface_address(const std::string& name) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return std::nullopt;
  std::optional<std::string> v4, v6;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || name != entry->ifa_name) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(entry->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    const std::string address(text.data());
    if (address.starts_with("fe80:") || address.starts_with("169.254.")) continue;
    auto& first = family == AF_INET ? v4 : v6;
    if (!first) first = address;
  }
  ::freeifaddrs(list);
  return v4 ? v4 : v6;
}

HostState look_around(const std::string& log_dir) {
  HostState host;
  auto gpus = query_gpus();
  if (gpus) {
    host.gpus = static_cast<std::int64_t>(gpus->size());
    const auto visible = process_environment()("CUDA_VISIBLE_DEVICES");
    host.visible_gpus = static_cast<std::int64_t>(visible_gpus(*gpus, visible).size());
    host.mig_instances = mig_instances(split(visible.value_or(""), ','));
  } else {
    host.gpu_problem = gpus.error().message();
  }
  host.gpu_device_files = ::access("/dev/nvidia0", F_OK) == 0;
  host.usable_cpus = cpu_budget().usable();
  host.online_cpus = std::max<long>(1, ::sysconf(_SC_NPROCESSORS_ONLN));
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    host.open_files_soft = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, 1'000'000'000));
    host.open_files_hard = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_max, 1'000'000'000));
  }
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && ::geteuid() != 0) {
    constexpr rlim_t kLow =
        4096;  // above that nobody is near it, and counting would cost the start a look at all of /proc
    host.processes_soft = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, 1'000'000'000));
    if (limit.rlim_cur < kLow) host.processes_in_use = threads_of_user(::getuid());
  }
  host.file_size_bytes = soft_limit(RLIMIT_FSIZE);
  host.address_space_bytes = soft_limit(RLIMIT_AS);
  host.cpu_seconds = soft_limit(RLIMIT_CPU);
  if (::geteuid() != 0) host.locked_memory_bytes = soft_limit(RLIMIT_MEMLOCK);
  host.infiniband = ::access("/dev/infiniband/uverbs0", F_OK) == 0;
  if (!log_dir.empty() && log_dir != "/dev/null") host.log_dir_free_bytes = free_bytes(log_dir);
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    host.shm_size_bytes = static_cast<std::uint64_t>(shm.f_blocks) * shm.f_frsize;
    host.shm_free_bytes = static_cast<std::uint64_t>(shm.f_bavail) * shm.f_frsize;
  }
  host.host_name = host_name();
  host.interfaces = interface_names();
  return host;
}

std::vector<Finding> judge(const HostState& host, const LaunchOptions& options, bool all) {
  auto findings = Judge(host, options).run();
  if (!all) std::erase_if(findings, [](const Finding& finding) { return finding.level == Level::ok; });
  return findings;
}

std::vector<Finding> doctor(const std::string& log_dir) {
  LaunchOptions options;
  options.job.nnodes_max = 2;
  HostState host = look_around(log_dir);
  host.host_addresses = addresses_of(host.host_name);
  const std::int64_t visible = host.visible_gpus.value_or(0);
  options.node.nproc = visible > 0 ? visible : 2;
  auto findings = judge(host, options, true);
  if (log_dir.empty() || log_dir == "/dev/null") return findings;
  if (auto usable = LogTree::try_out(log_dir); !usable) {
    std::erase_if(findings, [](const Finding& finding) { return finding.subject == kLogDirectory; });
    findings.insert(findings.begin(),
                    Finding{Level::error, kLogDirectory, usable.error().message(), exit_code::kUsage});
  } else if (!host.log_dir_free_bytes) {
    findings.push_back(Finding{Level::ok, kLogDirectory, "can be written to"});
  }
  return findings;
}

}  // namespace ddprun::launcher
