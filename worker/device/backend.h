#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/result.h"
#include "worker/device/device_context.h"
#include "worker/device/nccl_api.h"
#include "worker/tensor/dtype.h"

// What libddprun_cuda.so gives to the trainer. The library is loaded on demand, so the trainer starts on a node without
// CUDA. Both sides come from one build: the entry's name changes when this interface does.
namespace ddprun::engine {
class Kernels;  // worker/kernels/kernels.h; handed through
}

namespace ddprun::cuda {

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  virtual std::string versions() const = 0;  // "CUDA 13.0, cuBLAS 13.1.0, cuDNN 9.19.0"
  // Does not create a context on any device. Errors: system with the driver's reason.
  virtual Result<int> device_count() = 0;
  // Opens LOCAL_RANK's device, before any other CUDA call of this process; once. Errors: as DeviceContext::open.
  virtual Result<DeviceContext*> open(int rank, int local_rank) = 0;
  virtual NcclApi& nccl() = 0;  // works before open(); no device is touched by its unique ids
  // After open(). tf32: f32 products on tensor cores. Errors: as make_cuda_kernels.
  virtual Result<std::unique_ptr<engine::Kernels>> make_kernels(DType precision, bool tf32) = 0;
  // After open(): rounds device memory from one of f32, bf16, f16 to another, on the compute stream. Failures show in
  // the context's status().
  virtual void cast(DType from, DType to, const void* in, void* out, std::int64_t count) = 0;
};

// Loads the library once: beside the program, in ../lib, then by the loader's search. Errors: not_found naming the
// library, where it was looked for and the loader's reason.
Result<DeviceBackend*> load_backend();

}  // namespace ddprun::cuda

// The one symbol that libddprun_cuda.so exports.
extern "C" ddprun::cuda::DeviceBackend* ddprun_cuda_backend_v3();
