// The CUDA runtime calls of worker/cuda/device_api_real.cc and backend.cc. cudaDeviceSynchronize, cudaStreamSynchronize
// and cudaEventSynchronize are missing on purpose: they wait without a deadline, and code that calls one must not link.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/gpu/emulation/device.h"

namespace em = ddprun::emulated;

namespace {
int current_device = -1;
cudaError_t last_error = cudaSuccess;

// As the runtime does: what a call answered stays until cudaGetLastError() is asked, "not ready" too.
cudaError_t keep(cudaError_t status) {
  last_error = status;
  return status;
}

em::Stream* of(cudaStream_t stream) { return reinterpret_cast<em::Stream*>(stream); }
em::Event* of(cudaEvent_t event) { return reinterpret_cast<em::Event*>(event); }

cudaError_t call(const char* name, void* stream = nullptr, bool creates = false) {
  if (current_device < 0 && std::strcmp(name, "cudaSetDevice") != 0) {
    em::violated(std::string(name) + " before cudaSetDevice");
  }
  return static_cast<cudaError_t>(em::called(name, stream, creates));
}
}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = em::conduct().devices;
  if (const int status = em::called("cudaGetDeviceCount", nullptr)) return static_cast<cudaError_t>(status);
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  const cudaError_t status = call("cudaSetDevice");
  if (status != cudaSuccess) return status;
  if (em::conduct().devices == 0) return cudaErrorNoDevice;
  if (device >= em::conduct().devices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = em::conduct().device_bytes;
  *free_bytes = *total - std::min(*total, em::device_bytes_used());
  return call("cudaMemGetInfo");
}
cudaError_t cudaMalloc(void** memory, size_t size) {
  if (const cudaError_t status = call("cudaMalloc", nullptr, true)) return status;
  *memory = em::allocate_device(size);
  return *memory != nullptr ? cudaSuccess : keep(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  if (const cudaError_t status = call("cudaFree", nullptr, true)) return status;
  return em::release_device(memory) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** memory, size_t size) {
  if (const cudaError_t status = call("cudaMallocHost", nullptr, true)) return status;
  *memory = em::allocate_pinned(size);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  if (const cudaError_t status = call("cudaFreeHost", nullptr, true)) return status;
  return em::release_pinned(memory) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t size, cudaStream_t stream) {
  if (const cudaError_t status = call("cudaMemsetAsync", stream)) return status;
  if (!em::reaches(memory, size, "cudaMemsetAsync")) return cudaErrorInvalidValue;
  em::enqueue(stream, [=] { std::memset(memory, byte, size); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* out, const void* in, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  if (const cudaError_t status = call("cudaMemcpyAsync", stream)) return status;
  for (const void* side : {static_cast<const void*>(out), in}) {
    if (em::is_device(side) && !em::reaches(side, size, "cudaMemcpyAsync")) return cudaErrorInvalidValue;
  }
  em::enqueue(stream, [=] { std::memmove(out, in, size); });
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return call("cudaDeviceGetStreamPriorityRange");
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  if (const cudaError_t status = call("cudaStreamCreateWithPriority", nullptr, true)) return status;
  if (flags != cudaStreamNonBlocking) em::violated("a stream that waits for the default stream");
  *stream = reinterpret_cast<cudaStream_t>(em::create_stream());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t status = call("cudaStreamDestroy", stream, true)) return status;
  em::destroy_stream(of(stream));
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t status = call("cudaEventCreateWithFlags", nullptr, true)) return status;
  if (flags != cudaEventDisableTiming) em::violated("an event that takes times");
  *event = reinterpret_cast<cudaEvent_t>(em::create_event());
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t status = call("cudaEventDestroy", nullptr, true)) return status;
  em::destroy_event(of(event));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t status = call("cudaEventRecord", stream)) return status;
  em::record(of(event), of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t status = call("cudaStreamWaitEvent", stream)) return status;
  em::wait(of(stream), of(event));
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const int status = em::called("cudaEventQuery", nullptr)) return static_cast<cudaError_t>(status);
  return em::happened(of(event)) ? cudaSuccess : keep(cudaErrorNotReady);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  if (const cudaError_t status = call("cudaPointerGetAttributes")) return status;
  *attributes = {};
  attributes->type = em::is_device(memory) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->device = em::is_device(memory) ? std::max(current_device, 0) : -1;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const auto wanted = static_cast<cudaError_t>(em::called("cudaGetLastError", nullptr));
  const cudaError_t kept = std::exchange(last_error, cudaSuccess);
  return wanted != cudaSuccess ? wanted : kept;
}
const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "emulated error";
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::snprintf(properties->name, sizeof properties->name, "emulated device");
  return call("cudaGetDeviceProperties");
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return static_cast<cudaError_t>(em::called("cudaRuntimeGetVersion", nullptr));
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return static_cast<cudaError_t>(em::called("cudaDriverGetVersion", nullptr));
}

}  // extern "C"
