#pragma once

#include <cstddef>
#include <string>

// Thin seam over the CUDA runtime: exactly the calls that our host logic makes, with CUDA's own status numbers. The
// real one lives in libddprun_cuda.so; a fake records the order of calls and fails on command in tests. No call here
// waits for the device: events are polled.
namespace ddprun::cuda {

using StreamHandle = void*;
using EventHandle = void*;

class DeviceApi {
 public:
  static constexpr int kSuccess = 0;
  static constexpr int kOutOfMemory = 2;  // cudaErrorMemoryAllocation
  static constexpr int kNotReady = 600;   // cudaErrorNotReady

  virtual ~DeviceApi() = default;

  virtual int device_count(int* count) = 0;
  virtual int set_device(int device) = 0;
  virtual int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) = 0;
  virtual int malloc(void** memory, std::size_t size_bytes) = 0;
  virtual int free(void* memory) = 0;
  virtual int malloc_host(void** memory, std::size_t size_bytes) = 0;  // page-locked
  virtual int free_host(void* memory) = 0;
  virtual int memset_async(void* memory, int byte, std::size_t size_bytes, StreamHandle stream) = 0;
  virtual int memcpy_async(void* out, const void* in, std::size_t size_bytes, StreamHandle stream) = 0;
  virtual int create_stream(StreamHandle* stream, bool high_priority) = 0;
  virtual int destroy_stream(StreamHandle stream) = 0;
  virtual int create_event(EventHandle* event) = 0;
  virtual int destroy_event(EventHandle event) = 0;
  virtual int record_event(EventHandle event, StreamHandle stream) = 0;
  virtual int wait_event(StreamHandle stream, EventHandle event) = 0;
  virtual int query_event(EventHandle event) = 0;  // kSuccess or kNotReady, which is not kept as last_launch_error()
  // Device that owns the memory; -1 for host memory.
  virtual int pointer_device(const void* memory, int* device) = 0;
  virtual int last_launch_error() = 0;  // and clears it
  virtual std::string error_text(int status) = 0;
  virtual std::string device_name(int device) = 0;
};

}  // namespace ddprun::cuda
