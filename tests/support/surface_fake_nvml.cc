// A libnvidia-ml.so.1 for tests, found through LD_LIBRARY_PATH: FAKE_NVML_GPUS GPUs, or the error FAKE_NVML_ERROR.
// Own code against NVML's documented C interface; only what launcher/options/device.cc calls.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
int number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}
struct Pci {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
}  // namespace

extern "C" {
int nvmlInit_v2() { return number("FAKE_NVML_ERROR"); }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(number("FAKE_NVML_GPUS"));
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<unsigned long>(index + 1));
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  std::snprintf(uuid, size, "GPU-%02lu-fake", reinterpret_cast<unsigned long>(device) - 1);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, void* out) {
  auto* pci = static_cast<Pci*>(out);
  std::memset(pci, 0, sizeof *pci);
  std::snprintf(pci->id, sizeof pci->id, "00000000:%02lX:00.0", reinterpret_cast<unsigned long>(device) + 15);
  return 0;
}
const char* nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }
}
