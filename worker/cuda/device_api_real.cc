#include "worker/cuda/device_api_real.h"

#include <cuda_runtime.h>

namespace ddprun::cuda {
namespace {

class RealDeviceApi final : public DeviceApi {
 public:
  int device_count(int* count) override { return cudaGetDeviceCount(count); }
  int set_device(int device) override { return cudaSetDevice(device); }
  int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) override {
    return cudaMemGetInfo(free_bytes, total_bytes);
  }
  int malloc(void** memory, std::size_t size_bytes) override { return cudaMalloc(memory, size_bytes); }
  int free(void* memory) override { return cudaFree(memory); }
  int malloc_host(void** memory, std::size_t size_bytes) override { return cudaMallocHost(memory, size_bytes); }
  int free_host(void* memory) override { return cudaFreeHost(memory); }
  int memset_async(void* memory, int byte, std::size_t size_bytes, StreamHandle stream) override {
    return cudaMemsetAsync(memory, byte, size_bytes, static_cast<cudaStream_t>(stream));
  }
  int memcpy_async(void* out, const void* in, std::size_t size_bytes, StreamHandle stream) override {
    return cudaMemcpyAsync(out, in, size_bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
  }
  int create_stream(StreamHandle* stream, bool high_priority) override {
    int lowest = 0, highest = 0;
    if (const cudaError_t status = cudaDeviceGetStreamPriorityRange(&lowest, &highest); status != cudaSuccess) {
      return status;
    }
    cudaStream_t created = nullptr;
    const cudaError_t status =
        cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, high_priority ? highest : lowest);
    *stream = created;
    return status;
  }
  int destroy_stream(StreamHandle stream) override { return cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }
  int create_event(EventHandle* event) override {
    cudaEvent_t created = nullptr;
    const cudaError_t status = cudaEventCreateWithFlags(&created, cudaEventDisableTiming);
    *event = created;
    return status;
  }
  int destroy_event(EventHandle event) override { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
  int record_event(EventHandle event, StreamHandle stream) override {
    return cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream));
  }
  int wait_event(StreamHandle stream, EventHandle event) override {
    return cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0);
  }
  int query_event(EventHandle event) override {
    const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (status != cudaErrorNotReady) return status;
    // "Not ready" may stay as the runtime's last error, and the next look for launch errors would take it for one.
    const cudaError_t kept = cudaGetLastError();
    return kept == cudaSuccess ? cudaErrorNotReady : kept;
  }
  int pointer_device(const void* memory, int* device) override {
    cudaPointerAttributes attributes{};
    const cudaError_t status = cudaPointerGetAttributes(&attributes, memory);
    const bool on_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
    *device = status == cudaSuccess && on_device ? attributes.device : -1;
    return status;
  }
  int last_launch_error() override { return cudaGetLastError(); }
  std::string error_text(int status) override { return cudaGetErrorString(static_cast<cudaError_t>(status)); }
  std::string device_name(int device) override {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, device) == cudaSuccess ? properties.name : "unknown device";
  }
};

}  // namespace

std::unique_ptr<DeviceApi> make_device_api() { return std::make_unique<RealDeviceApi>(); }

}  // namespace ddprun::cuda
