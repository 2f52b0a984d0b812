#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/kernels/device.h"
#include "worker/tensor/rng.h"

namespace ddprun::engine {

// x [rows, channels]; y = relu?((x - mean) * rstd * gamma + beta + residual?).
struct BatchNormDesc {
  std::int64_t rows = 0, channels = 0;
  bool relu = false, residual = false;
  double eps = 1e-5, momentum = 0.1;
};

struct LayerNormDesc {
  std::int64_t rows = 0, columns = 0;
  double eps = 1e-5;
};

// qkv [batch, tokens, 3, heads, head_dim] -> y [batch, tokens, heads, head_dim]; scale 1/sqrt(head_dim), causal.
struct AttentionDesc {
  std::int64_t batch = 0, tokens = 0, heads = 0, head_dim = 0;
  double dropout = 0;
};

// x [n, h, w, c]; padding never wins a maximum.
struct PoolDesc {
  std::int64_t n = 0, h = 0, w = 0, c = 0, kernel = 2, stride = 2, padding = 0;
  std::int64_t oh() const { return (h + 2 * padding - kernel) / stride + 1; }
  std::int64_t ow() const { return (w + 2 * padding - kernel) / stride + 1; }
};

struct CrossEntropyDesc {
  std::int64_t rows = 0, classes = 0;
  double label_smoothing = 0;
  std::int32_t ignore_index = -100;
};

// Normalisation, attention, pooling and losses. Rules of all kernels: see kernels.h.
class LayerKernels {
 public:
  virtual ~LayerKernels() = default;

  virtual std::size_t prepare(const BatchNormDesc& desc) = 0;
  // Saves batch mean and 1/sqrt(biased variance + eps). running_* (null in a recomputation) move by momentum towards
  // the batch's mean and unbiased variance.
  virtual void batch_norm_train(const BatchNormDesc& desc, const void* x, const void* residual, const Master* gamma,
                                const Master* beta, Master* running_mean, Master* running_var, Master* mean,
                                Master* rstd, void* y, void* scratch) = 0;
  virtual void batch_norm_eval(const BatchNormDesc& desc, const void* x, const void* residual, const Master* gamma,
                               const Master* beta, const Master* running_mean, const Master* running_var, void* y) = 0;
  // y is read only for the relu mask.
  virtual void batch_norm_backward(const BatchNormDesc& desc, const void* dy, const void* x, const void* y,
                                   const Master* gamma, const Master* mean, const Master* rstd, void* dx,
                                   void* dresidual, bool accumulate_residual, Master* dgamma, Master* dbeta,
                                   bool accumulate_parameters, void* scratch) = 0;

  virtual std::size_t prepare(const LayerNormDesc& desc) = 0;
  virtual void layer_norm(const LayerNormDesc& desc, const void* x, const Master* gamma, const Master* beta,
                          Master* mean, Master* rstd, void* y) = 0;
  virtual void layer_norm_backward(const LayerNormDesc& desc, const void* dy, const void* x, const Master* gamma,
                                   const Master* mean, const Master* rstd, void* dx, bool accumulate_dx, Master* dgamma,
                                   Master* dbeta, bool accumulate_parameters, void* scratch) = 0;

  virtual std::size_t prepare(const AttentionDesc& desc) = 0;
  // log_sum [batch, heads, tokens]: log of the softmax denominators, for backward.
  virtual void attention(const AttentionDesc& desc, const RandomKey& key, const void* qkv, void* y, Master* log_sum,
                         void* scratch) = 0;
  virtual void attention_backward(const AttentionDesc& desc, const RandomKey& key, const void* dy, const void* qkv,
                                  const void* y, const Master* log_sum, void* dqkv, void* scratch) = 0;

  // index: position of the maximum within the window (row-major; the first wins a tie, nan wins over all).
  virtual void max_pool(const PoolDesc& desc, const void* x, void* y, std::uint8_t* index) = 0;
  virtual void max_pool_backward(const PoolDesc& desc, const void* dy, const std::uint8_t* index, void* dx,
                                 bool accumulate) = 0;
  // [n, positions, channels] -> [n, channels].
  virtual void mean_pool(std::int64_t n, std::int64_t positions, std::int64_t channels, const void* x, void* y) = 0;
  virtual void mean_pool_backward(std::int64_t n, std::int64_t positions, std::int64_t channels, const void* dy,
                                  void* dx, bool accumulate) = 0;

  virtual std::size_t prepare(const CrossEntropyDesc& desc) = 0;
  // loss: mean over rows whose target is not ignore_index (nan when there is none, as torch). log_sum [rows].
  virtual void cross_entropy(const CrossEntropyDesc& desc, const void* logits, const std::int32_t* targets,
                             double* loss, Master* log_sum, void* scratch) = 0;
  // dlogits may be logits. Times loss_scale.
  virtual void cross_entropy_backward(const CrossEntropyDesc& desc, const void* logits, const std::int32_t* targets,
                                      const Master* log_sum, double loss_scale, void* dlogits) = 0;
  virtual void mse(std::int64_t count, const void* prediction, const void* target, double* loss) = 0;
  virtual void mse_backward(std::int64_t count, const void* prediction, const void* target, double loss_scale,
                            void* dprediction) = 0;
};

}  // namespace ddprun::engine
