#pragma once

#include <cstddef>
#include <memory>

#include "worker/kernels/kernels.h"

namespace ddprun::engine {

// Matrix products and convolutions in f32 through oneDNN (the v2 API of Debian 12): the only file that knows it.
// Convolution weights arrive as OIHW and are reordered into the library's layout on the way.
class Dnnl {
 public:
  Dnnl();
  ~Dnnl();

  std::size_t prepare(const GemmDesc& desc);
  void gemm(const GemmDesc& desc, const float* a, const float* b, const float* bias, float* c, void* scratch);

  std::size_t prepare(const ConvDesc& desc);
  void conv_forward(const ConvDesc& desc, const float* x, const float* weight, float* y, void* scratch);
  void conv_backward_data(const ConvDesc& desc, const float* dy, const float* weight, float* dx, void* scratch);
  void conv_backward_weight(const ConvDesc& desc, const float* x, const float* dy, float* dweight, bool accumulate,
                            void* scratch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::engine
