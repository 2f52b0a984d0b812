#pragma once

#include <cstdint>

#include "worker/kernels/device.h"
#include "worker/tensor/rng.h"

namespace ddprun::engine {

// Activations, sums, dropout and rows of tables. Rules of all kernels: see kernels.h.
class ElementKernels {
 public:
  virtual ~ElementKernels() = default;

  virtual void gelu(std::int64_t count, const void* x, void* y) = 0;
  virtual void gelu_backward(std::int64_t count, const void* dy, const void* x, void* dx, bool accumulate) = 0;
  virtual void silu(std::int64_t count, const void* x, void* y) = 0;
  virtual void silu_backward(std::int64_t count, const void* dy, const void* x, void* dx, bool accumulate) = 0;
  virtual void relu(std::int64_t count, const void* x, void* y) = 0;
  virtual void relu_backward(std::int64_t count, const void* dy, const void* y, void* dx, bool accumulate) = 0;
  virtual void add(std::int64_t count, const void* a, const void* b, void* y) = 0;
  virtual void accumulate(std::int64_t count, const void* x, void* y) = 0;  // y += x
  virtual void dropout(std::int64_t count, double p, const RandomKey& key, const void* x, void* y) = 0;
  virtual void dropout_backward(std::int64_t count, double p, const RandomKey& key, const void* dy, void* dx,
                                bool accumulate) = 0;

  // y[i] = weight[ids[i]]; weight in T (the mirror).
  virtual void embedding(std::int64_t count, std::int64_t dim, const std::int32_t* ids, const void* weight,
                         void* y) = 0;
  // dweight[ids[i]] += dy[i]; without accumulate it is zeroed first.
  virtual void embedding_backward(std::int64_t count, std::int64_t dim, std::int64_t rows, const std::int32_t* ids,
                                  const void* dy, Master* dweight, bool accumulate) = 0;
  // y[b, i] = x[b, i] + weight[i], i < inner (positions: inner = tokens * dim).
  virtual void add_broadcast(std::int64_t batch, std::int64_t inner, const void* x, const void* weight, void* y) = 0;
};

}  // namespace ddprun::engine
