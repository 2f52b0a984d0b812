#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"

// GPUs of this host, through NVML that is loaded when it is asked for: no CUDA, no driver needed to start.
namespace ddprun::launcher {

struct Gpu {
  std::string uuid;        // "GPU-8f2c..."
  std::string pci_bus_id;  // "00000000:17:00.0"
};

// All GPUs that the driver knows, in NVML's order (that of nvidia-smi).
// Errors: not_found (no libnvidia-ml.so.1: no driver), system (NVML says no; with its own text).
Result<std::vector<Gpu>> query_gpus();

// Which of `gpus` programs see with this CUDA_VISIBLE_DEVICES (nullopt = unset): CUDA's rules, the list ends at the
// first entry that names no GPU. A MIG instance stands for one device (that of GPU 0: NVML is not asked whose it is).
// CUDA shows one process only one instance, so several serve several workers only if each gets an entry of its own
// (--virtual-local-rank); see mig_instances().
std::vector<std::size_t> visible_gpus(const std::vector<Gpu>& gpus, const std::optional<std::string>& visible_devices);

}  // namespace ddprun::launcher
