#pragma once

#include <cstdint>

#include "worker/kernels/kernels.h"
#include "worker/tensor/rng.h"

struct CUstream_st;  // cudaStream_t without the CUDA headers

// Host side of our own CUDA kernels. Every function queues work on `stream` and returns; launch errors are picked up by
// the caller with cudaGetLastError. `type` is the activations' type (f32, bf16 or f16); Master memory is f32.
// All sums have a fixed order: no floating-point atomics anywhere.
namespace ddprun::engine::gpu {

using Stream = CUstream_st*;

// Rows are summed in at most this many slices, one after the other: the size of the scratch for column sums.
inline constexpr std::int64_t kMaxSlices = 128;
// Bytes of scratch for two sums per column.
constexpr std::size_t column_scratch_bytes(std::int64_t columns) {
  return static_cast<std::size_t>(kMaxSlices * columns) * 2 * sizeof(float);
}

void convert(Stream stream, DType from, DType to, const void* in, void* out, std::int64_t count);
void add(Stream stream, DType type, std::int64_t count, const void* a, const void* b, void* y);
void add_broadcast(Stream stream, DType type, std::int64_t batch, std::int64_t inner, const void* x, const void* weight,
                   void* y);
void add_bias(Stream stream, DType type, std::int64_t rows, std::int64_t columns, const float* bias, void* y);
void relu(Stream stream, DType type, std::int64_t count, const void* x, void* y);
void relu_backward(Stream stream, DType type, std::int64_t count, const void* dy, const void* y, void* dx,
                   bool accumulate);
void gelu(Stream stream, DType type, std::int64_t count, const void* x, void* y);
void gelu_backward(Stream stream, DType type, std::int64_t count, const void* dy, const void* x, void* dx,
                   bool accumulate);
void silu(Stream stream, DType type, std::int64_t count, const void* x, void* y);
void silu_backward(Stream stream, DType type, std::int64_t count, const void* dy, const void* x, void* dx,
                   bool accumulate);
void dropout(Stream stream, DType type, std::int64_t count, double p, const RandomKey& key, const void* x, void* y,
             bool accumulate);

void column_sums(Stream stream, DType type, std::int64_t rows, std::int64_t columns, const void* x, float* out,
                 bool accumulate, void* scratch);

void batch_norm_train(Stream stream, DType type, const BatchNormDesc& desc, const void* x, const void* residual,
                      const float* gamma, const float* beta, float* running_mean, float* running_var, float* mean,
                      float* rstd, void* y, void* scratch);
void batch_norm_eval(Stream stream, DType type, const BatchNormDesc& desc, const void* x, const void* residual,
                     const float* gamma, const float* beta, const float* running_mean, const float* running_var,
                     void* y);
void batch_norm_backward(Stream stream, DType type, const BatchNormDesc& desc, const void* dy, const void* x,
                         const void* y, const float* gamma, const float* mean, const float* rstd, void* dx,
                         void* dresidual, bool accumulate_residual, float* dgamma, float* dbeta,
                         bool accumulate_parameters, void* scratch);

void layer_norm(Stream stream, DType type, const LayerNormDesc& desc, const void* x, const float* gamma,
                const float* beta, float* mean, float* rstd, void* y);
void layer_norm_backward(Stream stream, DType type, const LayerNormDesc& desc, const void* dy, const void* x,
                         const float* gamma, const float* mean, const float* rstd, void* dx, bool accumulate_dx,
                         float* dgamma, float* dbeta, bool accumulate_parameters, void* scratch);

void embedding(Stream stream, DType type, std::int64_t count, std::int64_t dim, const std::int32_t* ids,
               const void* weight, void* y);
// Adds to dweight [rows, dim], the tokens of each id in their order: the same bits every time. Reads all ids once for
// each token and dy once; ids outside of the table add nothing.
void embedding_backward(Stream stream, DType type, std::int64_t count, std::int64_t dim, std::int64_t rows,
                        const std::int32_t* ids, const void* dy, float* dweight);

// scores and dscores are [batch*heads, tokens, tokens] in the activations' type.
// In place: rows become softmax(scale * row) over the columns <= row, dropped out by `key`; the rest 0.
// log_sum [matrices * tokens] is written.
void causal_softmax(Stream stream, DType type, std::int64_t matrices, std::int64_t tokens, double scale, double dropout,
                    const RandomKey& key, void* scores, float* log_sum);
// In place: raw scores become what causal_softmax made of them, by log_sum; before dropout, and `dropped` after it.
void causal_softmax_again(Stream stream, DType type, std::int64_t matrices, std::int64_t tokens, double scale,
                          double dropout, const RandomKey& key, void* scores, void* dropped, const float* log_sum);
// In place in dscores (gradient of the dropped probabilities): gradient of the raw scores.
void causal_softmax_backward(Stream stream, DType type, std::int64_t matrices, std::int64_t tokens, double scale,
                             double dropout, const RandomKey& key, const void* probabilities, void* dscores);

void max_pool(Stream stream, DType type, const PoolDesc& desc, const void* x, void* y, std::uint8_t* index);
void max_pool_backward(Stream stream, DType type, const PoolDesc& desc, const void* dy, const std::uint8_t* index,
                       void* dx, bool accumulate);
void mean_pool(Stream stream, DType type, std::int64_t n, std::int64_t positions, std::int64_t channels, const void* x,
               void* y);
void mean_pool_backward(Stream stream, DType type, std::int64_t n, std::int64_t positions, std::int64_t channels,
                        const void* dy, void* dx, bool accumulate);

// scratch: rows * 2 doubles.
void cross_entropy(Stream stream, DType type, const CrossEntropyDesc& desc, const void* logits,
                   const std::int32_t* targets, double* loss, float* log_sum, void* scratch);
void cross_entropy_backward(Stream stream, DType type, const CrossEntropyDesc& desc, const void* logits,
                            const std::int32_t* targets, const float* log_sum, double loss_scale, void* dlogits,
                            double* kept);  // kept: one double of device memory for the number of kept rows
void mse(Stream stream, DType type, std::int64_t count, const void* prediction, const void* target, double* loss);
void mse_backward(Stream stream, DType type, std::int64_t count, const void* prediction, const void* target,
                  double loss_scale, void* dprediction);

// Filters between OIHW in files and plans and the OHWI that cuDNN wants beside NHWC activations.
void oihw_to_ohwi(Stream stream, DType type, std::int64_t o, std::int64_t i, std::int64_t positions, const void* in,
                  void* out);
void ohwi_to_oihw_master(Stream stream, DType type, std::int64_t o, std::int64_t i, std::int64_t positions,
                         const void* in, float* out, bool accumulate);

void sgd(Stream stream, DType low_type, const UpdateChunk& chunk, const SgdUpdate& update);
void adamw(Stream stream, DType low_type, const UpdateChunk& chunk, const AdamwUpdate& update);
// Adds sum of (g * unscale)^2 to *squared and sets *found_inf to 1 if an element is not finite. `scratch`: 1024
// doubles.
void gradient_norm(Stream stream, const float* gradient, std::int64_t count, double unscale, double* squared,
                   int* found_inf, double* scratch);

}  // namespace ddprun::engine::gpu
