#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "worker/tensor/rng.h"
#include "worker/tensor/shape.h"

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

// A piece of one parameter for the optimizer's single pass. `low` (may be null) receives the low-precision copy.
struct UpdateChunk {
  void* parameter = nullptr;
  void* gradient = nullptr;
  void* state1 = nullptr;  // SGD momentum buffer; AdamW exp_avg
  void* state2 = nullptr;  // AdamW exp_avg_sq
  void* low = nullptr;
  std::int64_t count = 0;
  double decay = 0;  // weight decay of this parameter
};

struct SgdUpdate {
  double lr = 0, momentum = 0, dampening = 0;
  bool nesterov = false, first = false;  // first: momentum buffer = gradient
  double unscale = 1, clip = 1;          // multiplied onto the gradient one after the other
};

struct AdamwUpdate {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^t
  double unscale = 1, clip = 1;
};

struct GradientNorm {
  double squared = 0;
  bool found_inf = false;  // an element is inf or nan
};

// Arithmetic of one device in one precision. All memory is this backend's; void* is memory of the activations' type T,
// Master* of the master type S:
//   reference: T = S = f64;  cpu: T = f32, bf16 or f16, S = f32;  cuda: as cpu.
// Sums, norms, softmax and losses are computed in S (f64 for the scalar loss). Every method is repeatable: the same
// input on the same machine with the same number of threads gives the same bits. On the CPU all but gemm and conv_* do
// so for any number of threads. Device backends queue and return; synchronize() waits.
// `accumulate`: add to the output instead of overwriting it. Null outputs of backward methods are not computed.
// prepare(desc): at plan time; creates library primitives and returns the scratch bytes that the calls with this
// description need. Calls with a prepared description allocate nothing.
using Master = void;

class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual std::string description() const = 0;  // "cpu f32, avx512, 2 threads"
  virtual DType activation_type() const = 0;
  DType master_type() const { return activation_type() == DType::f64 ? DType::f64 : DType::f32; }
  bool low_precision() const { return activation_type() != master_type(); }

  // Zeroed and 64-byte aligned; null when there is not enough.
  virtual void* allocate(std::size_t size_bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void copy_in(void* device, const void* host, std::size_t size_bytes) = 0;
  virtual void copy_out(void* host, const void* device, std::size_t size_bytes) = 0;  // waits
  virtual void synchronize() = 0;
  // Reads one f64 without waiting: queues its copy to the host behind the work so far. finish_read() gives the value,
  // once for each read_later(), and waits for that copy alone. Host backends read at once.
  struct PendingRead {
    double value = 0;
    std::size_t ticket = 0;
  };
  virtual PendingRead read_later(const double* memory) {
    PendingRead read;
    copy_out(&read.value, memory, sizeof read.value);
    return read;
  }
  virtual double finish_read(const PendingRead& read) { return read.value; }
  // The first failure of a queued call; calls after it do nothing. Host backends never fail.
  virtual Result<void> status() const { return {}; }

  virtual void zero(void* memory, std::size_t size_bytes) = 0;
  virtual void copy(void* out, const void* in, std::size_t size_bytes) = 0;
  virtual void to_low(void* low, const Master* master, std::int64_t count) = 0;  // S -> T
  virtual void from_f32(void* out, const float* in, std::int64_t count) = 0;     // device f32 -> T
  virtual void to_f32(float* out, const void* in, std::int64_t count) = 0;       // T -> device f32

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

  virtual void gelu(std::int64_t count, const void* x, void* y) = 0;
  virtual void gelu_backward(std::int64_t count, const void* dy, const void* x, void* dx, bool accumulate) = 0;
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

  // Optimizer passes; all chunks belong to different memory.
  virtual void sgd(std::span<const UpdateChunk> chunks, const SgdUpdate& update) = 0;
  virtual void adamw(std::span<const UpdateChunk> chunks, const AdamwUpdate& update) = 0;
  // Over gradient * unscale of all chunks.
  virtual GradientNorm gradient_norm(std::span<const UpdateChunk> chunks, double unscale) = 0;
};

// Plain loops in double: what all other backends are compared with.
std::unique_ptr<Kernels> make_reference_kernels();
// oneDNN for matrix products and convolutions, own fused loops for the rest; the instruction set (AVX-512, AVX2, plain)
// is chosen when the program runs. precision: f32, bf16 or f16 (the low ones prove semantics and are not faster).
// instruction_set: null for the best, or "avx2", "plain" to go no further (own loops only; for tests).
// Errors: invalid_argument for another type.
Result<std::unique_ptr<Kernels>> make_cpu_kernels(DType precision = DType::f32, const char* instruction_set = nullptr);

}  // namespace ddprun::engine
