#include "launcher/options/numa.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "launcher/options/hwloc_api.h"

namespace ddprun::launcher {
namespace {

class Topology {
 public:
  explicit Topology(const HwlocApi& hwloc) : hwloc_(hwloc) {
    if (hwloc_.topology_init(&topology_) != 0) topology_ = nullptr;
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() {
    if (topology_ != nullptr) hwloc_.topology_destroy(topology_);
  }
  hwloc_topology_t get() const { return topology_; }

 private:
  const HwlocApi& hwloc_;
  hwloc_topology_t topology_ = nullptr;
};

// A set of CPUs with the few operations that we need.
class CpuSet {
 public:
  explicit CpuSet(const HwlocBitmaps& hwloc) : hwloc_(&hwloc), bits_(hwloc.alloc()) {}
  CpuSet(const HwlocBitmaps& hwloc, hwloc_const_bitmap_t bits) : hwloc_(&hwloc), bits_(hwloc.dup(bits)) {}
  CpuSet(const CpuSet& other) : CpuSet(*other.hwloc_, other.bits_) {}
  CpuSet(CpuSet&& other) noexcept : hwloc_(other.hwloc_), bits_(std::exchange(other.bits_, nullptr)) {}
  CpuSet& operator=(CpuSet other) {
    std::swap(bits_, other.bits_);
    return *this;
  }
  ~CpuSet() { hwloc_->free(bits_); }

  hwloc_bitmap_t get() const { return bits_; }
  bool empty() const { return hwloc_->iszero(bits_) != 0; }
  void add(hwloc_const_bitmap_t other) { hwloc_->or_(bits_, bits_, other); }
  void keep(hwloc_const_bitmap_t other) { hwloc_->and_(bits_, bits_, other); }
  std::vector<int> list() const {
    std::vector<int> out;
    for (int cpu = hwloc_->first(bits_); cpu >= 0; cpu = hwloc_->next(bits_, cpu)) out.push_back(cpu);
    return out;
  }

 private:
  const HwlocBitmaps* hwloc_;
  hwloc_bitmap_t bits_;
};

class Binder {
 public:
  Binder(const HwlocApi& hwloc, hwloc_topology_t topology, const NumaRequest& request, CpuSet allowed)
      : hwloc_(hwloc), topology_(topology), request_(request), allowed_(std::move(allowed)) {}

  Result<std::vector<std::vector<int>>> bind() {
    collect_nodes();
    if (nodes_.empty()) {
      return Error(Errc::system, "--numa-binding: hwloc finds no NUMA node whose CPUs we may use");
    }
    std::vector<std::vector<std::int64_t>> workers_of(nodes_.size());
    for (std::int64_t i = 0; i < request_.workers; ++i) {
      auto node = node_of(i);
      if (!node) return std::move(node).error();
      workers_of[*node].push_back(i);
    }
    std::vector<std::vector<int>> out(static_cast<std::size_t>(request_.workers));
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const auto count = static_cast<std::int64_t>(workers_of[n].size());
      for (std::int64_t k = 0; k < count; ++k) {
        CpuSet cpus = request_.mode == "node"        ? nodes_[n].cpus
                      : request_.mode == "socket"    ? package_around(nodes_[n])
                      : request_.mode == "exclusive" ? share_of_cores(nodes_[n], k, count)
                                                     : cache_group(nodes_[n], k, count);
        cpus.keep(allowed_.get());
        const auto worker = workers_of[n][static_cast<std::size_t>(k)];
        if (cpus.empty()) {
          return Error(Errc::invalid_argument,
                       fmt::format("--numa-binding={}: nothing is left for local rank {}: none of the CPUs near its "
                                   "device is in our affinity mask",
                                   request_.mode, worker));
        }
        out[static_cast<std::size_t>(worker)] = cpus.list();
      }
    }
    return out;
  }

 private:
  struct Node {
    int os_index;
    CpuSet cpus;
  };

  // All objects of a type, in logical order. NUMA nodes and caches of one level have one depth.
  std::vector<hwloc_obj_t> objects(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> out;
    const int depth = hwloc_.get_type_depth(topology_, type);
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) return out;
    const unsigned count = hwloc_.get_nbobjs_by_depth(topology_, depth);
    for (unsigned i = 0; i < count; ++i) out.push_back(hwloc_.get_obj_by_depth(topology_, depth, i));
    return out;
  }

  void collect_nodes() {
    for (const hwloc_obj_t object : objects(HWLOC_OBJ_NUMANODE)) {
      CpuSet cpus(hwloc_.bitmap, object->cpuset);
      cpus.keep(allowed_.get());
      if (!cpus.empty()) nodes_.push_back(Node{static_cast<int>(object->os_index), std::move(cpus)});
    }
  }

  Result<std::size_t> node_of(std::int64_t worker) const {
    const auto index = static_cast<std::size_t>(worker);
    if (index < request_.gpu_nodes.size() && request_.gpu_nodes[index]) {
      const int wanted = *request_.gpu_nodes[index];
      for (std::size_t n = 0; n < nodes_.size(); ++n) {
        if (nodes_[n].os_index == wanted) return n;
      }
      return Error(Errc::invalid_argument,
                   fmt::format("--numa-binding: the GPU of local rank {} is at NUMA node {}, none of whose CPUs we may "
                               "use (affinity mask, control group)",
                               worker, wanted));
    }
    return index * nodes_.size() / static_cast<std::size_t>(request_.workers);
  }

  CpuSet package_around(const Node& node) const {
    CpuSet out = node.cpus;
    for (const hwloc_obj_t package : objects(HWLOC_OBJ_PACKAGE)) {
      if (hwloc_.bitmap.intersects(package->cpuset, node.cpus.get()) != 0) out.add(package->cpuset);
    }
    return out;
  }

  // Objects of `type` that have a CPU of this node, in logical order.
  std::vector<CpuSet> inside(const Node& node, hwloc_obj_type_t type) const {
    std::vector<CpuSet> out;
    for (const hwloc_obj_t object : objects(type)) {
      CpuSet cpus(hwloc_.bitmap, object->cpuset);
      cpus.keep(node.cpus.get());
      if (!cpus.empty()) out.push_back(std::move(cpus));
    }
    return out;
  }

  // Cores k*n/count .. (k+1)*n/count of the node's n; with fewer cores than workers they are shared.
  CpuSet share_of_cores(const Node& node, std::int64_t k, std::int64_t count) const {
    const auto cores = inside(node, HWLOC_OBJ_CORE);
    const auto total = static_cast<std::int64_t>(cores.size());
    if (total == 0) return node.cpus;
    CpuSet out(hwloc_.bitmap);
    const std::int64_t first = k * total / count;
    const std::int64_t last = std::max(first + 1, (k + 1) * total / count);
    for (std::int64_t i = first; i < last; ++i) out.add(cores[static_cast<std::size_t>(i)].get());
    return out;
  }

  CpuSet cache_group(const Node& node, std::int64_t k, std::int64_t count) const {
    const auto caches = inside(node, HWLOC_OBJ_L3CACHE);
    if (caches.empty()) return node.cpus;
    const auto total = static_cast<std::int64_t>(caches.size());
    return caches[static_cast<std::size_t>(count <= total ? k * total / count : k % total)];
  }

  const HwlocApi& hwloc_;
  hwloc_topology_t topology_;
  const NumaRequest& request_;
  CpuSet allowed_;
  std::vector<Node> nodes_;
};

}  // namespace

Result<std::vector<std::vector<int>>> numa_binding(const NumaRequest& request) {
  const auto loaded = load_hwloc();
  if (!loaded) return loaded.error();
  const HwlocApi& hwloc = **loaded;
  const Topology topology(hwloc);
  if (topology.get() == nullptr) return Error(Errc::system, "--numa-binding: hwloc cannot start");
  if (hwloc.topology_load(topology.get()) != 0) {
    return Error(Errc::system, "--numa-binding: hwloc cannot read the topology");
  }
  CpuSet allowed(hwloc.bitmap);
  if (request.allowed_cpus) {
    for (const int cpu : *request.allowed_cpus) hwloc.bitmap.set(allowed.get(), static_cast<unsigned>(cpu));
  } else if (hwloc.topology_is_thissystem(topology.get()) == 0 ||
             hwloc.get_cpubind(topology.get(), allowed.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    // A synthetic topology: all of it.
    allowed = CpuSet(hwloc.bitmap, hwloc.topology_get_allowed_cpuset(topology.get()));
  }
  return Binder(hwloc, topology.get(), request, std::move(allowed)).bind();
}

std::optional<int> numa_node_of(const std::string& pci_bus_id, const std::string& sys_root) {
  std::string id = pci_bus_id;  // sysfs has four digits of domain, in lower case
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto colon = id.find(':');
  if (colon != std::string::npos && colon > 4) id.erase(0, colon - 4);
  std::ifstream in(sys_root + "/bus/pci/devices/" + id + "/numa_node");
  int node = 0;
  if (!(in >> node)) return std::nullopt;
  return std::max(node, 0);
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string out;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i;
    while (end + 1 < cpus.size() && cpus[end + 1] == cpus[end] + 1) ++end;
    if (!out.empty()) out += ',';
    out += end == i ? std::to_string(cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[end]);
    i = end + 1;
  }
  return out;
}

}  // namespace ddprun::launcher
