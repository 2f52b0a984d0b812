#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"

// --numa-binding: which CPUs each worker is bound to. The topology comes from hwloc (and so from HWLOC_SYNTHETIC or
// HWLOC_XMLFILE in tests).
namespace ddprun::launcher {

struct NumaRequest {
  std::string mode;                              // node, socket, exclusive, core-complex
  std::int64_t workers = 1;                      // on this node
  std::vector<std::optional<int>> gpu_nodes;     // NUMA node (OS index) of worker i's GPU; shorter or nullopt = unknown
  std::optional<std::vector<int>> allowed_cpus;  // nullopt = our affinity mask
};

// CPUs (OS indices, ascending) of each worker.
//   node: all CPUs of the GPU's NUMA node; socket: all CPUs of the package around it; exclusive: an equal share of the
//   node's cores, not shared with other workers while there are enough; core-complex: the CPUs below one L3 cache.
// Workers without a known GPU are spread evenly over the NUMA nodes, in order.
// Errors: system (no topology), invalid_argument (a worker would be left without a CPU; says which and why).
Result<std::vector<std::vector<int>>> numa_binding(const NumaRequest& request);

// NUMA node of a PCI device, from <sys_root>/bus/pci/devices/<id>/numa_node; -1 there (one node) counts as 0.
// `pci_bus_id`: as NVML writes it ("00000000:17:00.0"). nullopt: no such device.
std::optional<int> numa_node_of(const std::string& pci_bus_id, const std::string& sys_root = "/sys");

// "0-3,8": for messages.
std::string cpu_list(const std::vector<int>& cpus);

}  // namespace ddprun::launcher
