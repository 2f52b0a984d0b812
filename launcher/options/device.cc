#include "launcher/options/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <memory>

#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

// The few entry points of NVML's stable C interface that we call (nvml.h of driver 550; the _v2/_v3 names are fixed).
using NvmlDevice = void*;
struct NvmlPciInfo {  // nvmlPciInfo_t, filled by nvmlDeviceGetPciInfo_v3
  std::array<char, 16> bus_id_legacy;
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  std::array<char, 32> bus_id;
};

class Nvml {
 public:
  static Result<Nvml> load() {
    Nvml nvml;
    nvml.library_.reset(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
    if (!nvml.library_) {
      return Error(Errc::not_found, "there is no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded)");
    }
    const bool complete = nvml.find(nvml.init_, "nvmlInit_v2") && nvml.find(nvml.shutdown_, "nvmlShutdown") &&
                          nvml.find(nvml.count_, "nvmlDeviceGetCount_v2") &&
                          nvml.find(nvml.handle_, "nvmlDeviceGetHandleByIndex_v2") &&
                          nvml.find(nvml.uuid_, "nvmlDeviceGetUUID") &&
                          nvml.find(nvml.pci_, "nvmlDeviceGetPciInfo_v3") && nvml.find(nvml.error_, "nvmlErrorString");
    if (!complete) return Error(Errc::system, "libnvidia-ml.so.1 lacks a function that every driver since 2018 has");
    return nvml;
  }

  Result<std::vector<Gpu>> gpus() {
    if (auto done = check(init_(), "nvmlInit"); !done) return std::move(done).error();
    auto found = list();
    shutdown_();
    return found;
  }

 private:
  template <typename Function>
  bool find(Function*& target, const char* name) {
    target = reinterpret_cast<Function*>(::dlsym(library_.get(), name));
    return target != nullptr;
  }

  Result<void> check(int code, const char* call) const {
    if (code == 0) return {};
    const char* text = error_(code);
    return Error(Errc::system, std::string(call) + ": " + (text != nullptr ? text : "unknown error"));
  }

  Result<std::vector<Gpu>> list() const {
    unsigned int count = 0;
    if (auto done = check(count_(&count), "nvmlDeviceGetCount"); !done) return std::move(done).error();
    std::vector<Gpu> gpus;
    for (unsigned int i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      if (auto done = check(handle_(i, &device), "nvmlDeviceGetHandleByIndex"); !done) return std::move(done).error();
      std::array<char, 96> uuid{};
      NvmlPciInfo pci{};
      if (auto done = check(uuid_(device, uuid.data(), uuid.size()), "nvmlDeviceGetUUID"); !done) {
        return std::move(done).error();
      }
      if (auto done = check(pci_(device, &pci), "nvmlDeviceGetPciInfo"); !done) return std::move(done).error();
      gpus.push_back(Gpu{uuid.data(), pci.bus_id.data()});
    }
    return gpus;
  }

  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };
  std::unique_ptr<void, Close> library_;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned int*) = nullptr;
  int (*handle_)(unsigned int, NvmlDevice*) = nullptr;
  int (*uuid_)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*pci_)(NvmlDevice, NvmlPciInfo*) = nullptr;
  const char* (*error_)(int) = nullptr;
};

}  // namespace

Result<std::vector<Gpu>> query_gpus() {
  auto nvml = Nvml::load();
  if (!nvml) return std::move(nvml).error();
  return nvml->gpus();
}

std::vector<std::size_t> visible_gpus(const std::vector<Gpu>& gpus, const std::optional<std::string>& visible_devices) {
  std::vector<std::size_t> out;
  if (!visible_devices) {
    for (std::size_t i = 0; i < gpus.size(); ++i) out.push_back(i);
    return out;
  }
  for (const auto& item : split(*visible_devices, ',')) {
    const std::string entry = trimmed(item);
    std::size_t index = gpus.size();
    if (auto number = parse_integer(entry, 0, static_cast<std::int64_t>(gpus.size()) - 1)) {
      index = static_cast<std::size_t>(*number);
    } else if (entry.starts_with("GPU-")) {  // an unambiguous prefix is enough
      const auto matches = [&entry](const Gpu& gpu) { return gpu.uuid.starts_with(entry); };
      if (std::count_if(gpus.begin(), gpus.end(), matches) == 1) {
        index = static_cast<std::size_t>(std::find_if(gpus.begin(), gpus.end(), matches) - gpus.begin());
      }
    } else if (entry.starts_with("MIG-") && !gpus.empty()) {
      index = 0;
      out.push_back(index);
      continue;
    }
    // CUDA stops at the first entry that names no GPU, and takes none at all when one is named twice.
    if (index >= gpus.size()) break;
    if (std::find(out.begin(), out.end(), index) != out.end()) return {};
    out.push_back(index);
  }
  return out;
}

}  // namespace ddprun::launcher
