#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/kernels/device.h"

namespace ddprun::engine {

// c[m, n] (+)= op(a)[m, k] * op(b)[k, n] + bias[n]. Everything contiguous row-major; op transposes.
struct GemmDesc {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool bias = false;        // master type
  bool accumulate = false;  // c += instead of c =
  bool master_out = false;  // c in the master type (weight gradients), else in the activations' type
  friend bool operator==(const GemmDesc&, const GemmDesc&) = default;
};

// x [n, h, w, c] (NHWC), weight [oc, c, kernel, kernel] (OIHW), y [n, oh, ow, oc].
struct ConvDesc {
  std::int64_t n = 0, h = 0, w = 0, c = 0, oc = 0, kernel = 1, stride = 1, padding = 0;
  std::int64_t oh() const { return (h + 2 * padding - kernel) / stride + 1; }
  std::int64_t ow() const { return (w + 2 * padding - kernel) / stride + 1; }
  friend bool operator==(const ConvDesc&, const ConvDesc&) = default;
};

// Matrix products and convolutions. Rules of all kernels: see kernels.h.
class MatrixKernels {
 public:
  virtual ~MatrixKernels() = default;

  virtual std::size_t prepare(const GemmDesc& desc) = 0;
  virtual void gemm(const GemmDesc& desc, const void* a, const void* b, const Master* bias, void* c, void* scratch) = 0;
  // out[columns] (+)= sums of x [rows, columns] over rows: bias gradients.
  virtual void column_sums(std::int64_t rows, std::int64_t columns, const void* x, Master* out, bool accumulate) = 0;

  virtual std::size_t prepare(const ConvDesc& desc) = 0;
  virtual void conv_forward(const ConvDesc& desc, const void* x, const void* weight, void* y, void* scratch) = 0;
  virtual void conv_backward_data(const ConvDesc& desc, const void* dy, const void* weight, void* dx,
                                  void* scratch) = 0;
  virtual void conv_backward_weight(const ConvDesc& desc, const void* x, const void* dy, Master* dweight,
                                    bool accumulate, void* scratch) = 0;
};

}  // namespace ddprun::engine
