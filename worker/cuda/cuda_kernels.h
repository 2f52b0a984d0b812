#pragma once

#include <memory>

#include "common/result.h"
#include "worker/device/device_context.h"
#include "worker/kernels/kernels.h"

namespace ddprun::engine {

struct CudaKernelsOptions {
  DType precision = DType::f32;  // f32, bf16 or f16
  bool tf32 = false;             // f32 products on tensor cores with 10-bit mantissas
};

// cuBLASLt for matrix products, cuDNN for convolutions (NHWC), own kernels for the rest, all on `context`'s compute
// stream. Only in libddprun_cuda.so. Calls after a failure do nothing; status() tells the first one.
// Errors: invalid_argument for another precision; system when a library does not initialise.
Result<std::unique_ptr<Kernels>> make_cuda_kernels(cuda::DeviceContext& context, const CudaKernelsOptions& options);

}  // namespace ddprun::engine
