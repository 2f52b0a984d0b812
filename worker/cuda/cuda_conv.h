#pragma once

#include <cudnn.h>

#include <memory>
#include <vector>

#include "worker/device/device_context.h"
#include "worker/kernels/kernels.h"

namespace ddprun::engine::gpu {

// Convolutions by cuDNN: NHWC activations, filters turned into OHWI scratch on the way. Deterministic algorithms only.
class Convolutions {
 public:
  Convolutions(cuda::DeviceContext& context, DType type, bool tf32);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  std::size_t prepare(const ConvDesc& desc);  // scratch bytes
  void forward(const ConvDesc& desc, const void* x, const void* weight, void* y, void* scratch);
  void backward_data(const ConvDesc& desc, const void* dy, const void* weight, void* dx, bool accumulate,
                     void* scratch);
  void backward_weight(const ConvDesc& desc, const void* x, const void* dy, float* dweight, bool accumulate,
                       void* scratch);

 private:
  struct Convolution;
  Convolution* find(const ConvDesc& desc);
  bool choose_algorithms(Convolution& made);
  bool ok(const char* call, int status);

  cuda::DeviceContext& context_;
  DType type_;
  bool tf32_;
  cudnnHandle_t handle_ = nullptr;
  std::vector<std::unique_ptr<Convolution>> convolutions_;
};

}  // namespace ddprun::engine::gpu
