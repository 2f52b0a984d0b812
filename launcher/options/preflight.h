#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "launcher/options/options.h"

// Checks before the first worker, and `ddpctl doctor`: what would fail later is said now, with what to do.
// look_around() reads the host, judge() decides.
namespace ddprun::launcher {

struct Finding {
  enum class Level { ok, warning, error };
  Level level = Level::ok;
  std::string subject;  // "GPUs", "open files", ...
  std::string text;     // one sentence
  int exit_code = 0;    // of an error: what ddprun ends with
};

// What the host has. Absent = could not be found out.
struct HostState {
  std::optional<std::int64_t> gpus;          // that the driver knows
  std::optional<std::int64_t> visible_gpus;  // of them, with our CUDA_VISIBLE_DEVICES; a MIG instance counts as one
  std::int64_t mig_instances = 0;            // among the visible ones
  std::string gpu_problem;                   // why GPUs cannot be counted; "" = they can
  bool gpu_device_files = false;             // /dev/nvidia0 is there
  std::int64_t usable_cpus = 1;
  std::int64_t online_cpus = 1;
  std::int64_t open_files_soft = 0, open_files_hard = 0;
  std::int64_t processes_soft = 0;    // RLIMIT_NPROC; 0 = no limit
  std::int64_t processes_in_use = 0;  // of them, this user's processes and threads; counted where the limit is low
  std::optional<std::uint64_t> file_size_bytes;      // RLIMIT_FSIZE; nullopt = no limit, as in the next three
  std::optional<std::uint64_t> address_space_bytes;  // RLIMIT_AS
  std::optional<std::uint64_t> cpu_seconds;          // RLIMIT_CPU
  std::optional<std::uint64_t> locked_memory_bytes;  // RLIMIT_MEMLOCK, where it counts for this user
  bool infiniband = false;                           // there is an RDMA device, whose users lock memory
  std::optional<std::uint64_t> log_dir_free_bytes;
  std::optional<std::uint64_t> shm_size_bytes;  // of /dev/shm
  std::optional<std::uint64_t> shm_free_bytes;
  std::string host_name;
  // Numeric, of our own name; empty = the name does not resolve; nullopt = not asked (a dead DNS takes seconds).
  std::optional<std::vector<std::string>> host_addresses;
  std::vector<std::string> interfaces;
};

// `log_dir`: "" = none; a folder that does not exist yet counts as its nearest existing parent.
HostState look_around(const std::string& log_dir);

// All findings for this job, errors first; with `all` those that are fine too.
std::vector<Finding> judge(const HostState& host, const LaunchOptions& options, bool all);

// First address of a network interface, IPv4 before IPv6, no link-local one. nullopt: it has none.
std::optional<std::string> interface_address(const std::string& name);

// For `ddpctl doctor`: all checks, as for a job of several nodes with a worker for each GPU (at least 2). Asks the
// resolver for our own name, which may take seconds, and tries to write to `log_dir`.
std::vector<Finding> doctor(const std::string& log_dir);

}  // namespace ddprun::launcher
