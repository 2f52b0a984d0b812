#include "worker/cuda/cuda_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "worker/cuda/cuda_blas.h"
#include "worker/cuda/cuda_conv.h"
#include "worker/cuda/launch.h"

namespace ddprun::engine {
namespace {

// Device memory of our own for sums that a Kernels method has no scratch for.
struct SmallMemory {
  double squared = 0;
  double kept = 0;
  std::int32_t found_inf = 0;
  std::int32_t unused = 0;
};
constexpr std::size_t kNormScratchBytes = 1024 * sizeof(double);

class CudaKernels final : public Kernels {
 public:
  CudaKernels(cuda::DeviceContext& context, const CudaKernelsOptions& options)
      : context_(context),
        type_(options.precision),
        tf32_(options.tf32),
        blas_(context, options.precision, options.tf32),
        convolutions_(context, options.precision, options.tf32) {
    small_ = static_cast<SmallMemory*>(context_.allocate(sizeof(SmallMemory), "kernels"));
    norm_scratch_ = static_cast<double*>(context_.allocate(kNormScratchBytes, "kernels"));
  }

  ~CudaKernels() override {
    context_.release(small_);
    context_.release(norm_scratch_);
    if (column_scratch_) context_.release(column_scratch_);
  }

  std::string description() const override {
    return fmt::format("cuda {}{}, device {} ({})", name_of(type_), tf32_ ? " with tf32 products" : "",
                       context_.device(), context_.api().device_name(context_.device()));
  }
  DType activation_type() const override { return type_; }
  Result<void> status() const override { return context_.status(); }

  void* allocate(std::size_t size_bytes) override { return context_.allocate(size_bytes, "tensors of the plan"); }
  void release(void* memory) override { context_.release(memory); }
  void copy_in(void* device, const void* host, std::size_t size_bytes) override {
    context_.upload(device, host, size_bytes);
  }
  void copy_out(void* host, const void* device, std::size_t size_bytes) override {
    context_.download(host, device, size_bytes);
  }
  void synchronize() override { context_.synchronize(); }
  PendingRead read_later(const double* memory) override { return {.value = 0, .ticket = context_.send(memory)}; }
  double finish_read(const PendingRead& read) override { return context_.receive(read.ticket); }
  void zero(void* memory, std::size_t size_bytes) override { context_.zero(memory, size_bytes); }
  void copy(void* out, const void* in, std::size_t size_bytes) override {
    context_.copy_on_compute(out, in, size_bytes);
  }
  void to_low(void* low, const Master* master, std::int64_t count) override {
    run("to_low", [&] { gpu::convert(stream(), DType::f32, type_, master, low, count); });
  }
  void from_f32(void* out, const float* in, std::int64_t count) override {
    run("from_f32", [&] { gpu::convert(stream(), DType::f32, type_, in, out, count); });
  }
  void to_f32(float* out, const void* in, std::int64_t count) override {
    run("to_f32", [&] { gpu::convert(stream(), type_, DType::f32, in, out, count); });
  }

  std::size_t prepare(const GemmDesc& desc) override {
    blas_.prepare(desc);
    if (desc.bias) reserve_column_scratch(desc.n);  // for the bias gradient
    return 0;
  }
  void gemm(const GemmDesc& desc, const void* a, const void* b, const Master* bias, void* c, void*) override {
    if (desc.m == 0 || desc.n == 0) return;
    if (desc.k == 0) {
      if (!desc.accumulate) zero(c, static_cast<std::size_t>(desc.m * desc.n) * size_of(out_type(desc)));
      if (desc.bias) add_bias(desc, bias, c);
      return;
    }
    if (!blas_.gemm(desc, a, b, static_cast<const float*>(bias), c)) add_bias(desc, bias, c);
  }
  void column_sums(std::int64_t rows, std::int64_t columns, const void* x, Master* out, bool accumulate) override {
    reserve_column_scratch(columns);
    run("column_sums", [&] {
      gpu::column_sums(stream(), type_, rows, columns, x, static_cast<float*>(out), accumulate, column_scratch_);
    });
  }

  std::size_t prepare(const ConvDesc& desc) override { return convolutions_.prepare(desc); }
  void conv_forward(const ConvDesc& desc, const void* x, const void* weight, void* y, void* scratch) override {
    convolutions_.forward(desc, x, weight, y, scratch);
  }
  void conv_backward_data(const ConvDesc& desc, const void* dy, const void* weight, void* dx, void* scratch) override {
    convolutions_.backward_data(desc, dy, weight, dx, false, scratch);
  }
  void conv_backward_weight(const ConvDesc& desc, const void* x, const void* dy, Master* dweight, bool accumulate_dw,
                            void* scratch) override {
    convolutions_.backward_weight(desc, x, dy, static_cast<float*>(dweight), accumulate_dw, scratch);
  }

  std::size_t prepare(const BatchNormDesc& desc) override { return gpu::column_scratch_bytes(desc.channels); }
  void batch_norm_train(const BatchNormDesc& desc, const void* x, const void* residual, const Master* gamma,
                        const Master* beta, Master* running_mean, Master* running_var, Master* mean, Master* rstd,
                        void* y, void* scratch) override {
    run("batch_norm_train", [&] {
      gpu::batch_norm_train(stream(), type_, desc, x, residual, f(gamma), f(beta), f(running_mean), f(running_var),
                            f(mean), f(rstd), y, scratch);
    });
  }
  void batch_norm_eval(const BatchNormDesc& desc, const void* x, const void* residual, const Master* gamma,
                       const Master* beta, const Master* running_mean, const Master* running_var, void* y) override {
    run("batch_norm_eval", [&] {
      gpu::batch_norm_eval(stream(), type_, desc, x, residual, f(gamma), f(beta), f(running_mean), f(running_var), y);
    });
  }
  void batch_norm_backward(const BatchNormDesc& desc, const void* dy, const void* x, const void* y, const Master* gamma,
                           const Master* mean, const Master* rstd, void* dx, void* dresidual, bool accumulate_residual,
                           Master* dgamma, Master* dbeta, bool accumulate_parameters, void* scratch) override {
    run("batch_norm_backward", [&] {
      gpu::batch_norm_backward(stream(), type_, desc, dy, x, y, f(gamma), f(mean), f(rstd), dx, dresidual,
                               accumulate_residual, f(dgamma), f(dbeta), accumulate_parameters, scratch);
    });
  }

  std::size_t prepare(const LayerNormDesc& desc) override { return gpu::column_scratch_bytes(desc.columns); }
  void layer_norm(const LayerNormDesc& desc, const void* x, const Master* gamma, const Master* beta, Master* mean,
                  Master* rstd, void* y) override {
    run("layer_norm", [&] { gpu::layer_norm(stream(), type_, desc, x, f(gamma), f(beta), f(mean), f(rstd), y); });
  }
  void layer_norm_backward(const LayerNormDesc& desc, const void* dy, const void* x, const Master* gamma,
                           const Master* mean, const Master* rstd, void* dx, bool accumulate_dx, Master* dgamma,
                           Master* dbeta, bool accumulate_parameters, void* scratch) override {
    run("layer_norm_backward", [&] {
      gpu::layer_norm_backward(stream(), type_, desc, dy, x, f(gamma), f(mean), f(rstd), dx, accumulate_dx, f(dgamma),
                               f(dbeta), accumulate_parameters, scratch);
    });
  }

  void gelu(std::int64_t count, const void* x, void* y) override {
    run("gelu", [&] { gpu::gelu(stream(), type_, count, x, y); });
  }
  void gelu_backward(std::int64_t count, const void* dy, const void* x, void* dx, bool accumulate_dx) override {
    run("gelu_backward", [&] { gpu::gelu_backward(stream(), type_, count, dy, x, dx, accumulate_dx); });
  }
  void silu(std::int64_t count, const void* x, void* y) override {
    run("silu", [&] { gpu::silu(stream(), type_, count, x, y); });
  }
  void silu_backward(std::int64_t count, const void* dy, const void* x, void* dx, bool accumulate_dx) override {
    run("silu_backward", [&] { gpu::silu_backward(stream(), type_, count, dy, x, dx, accumulate_dx); });
  }
  void relu(std::int64_t count, const void* x, void* y) override {
    run("relu", [&] { gpu::relu(stream(), type_, count, x, y); });
  }
  void relu_backward(std::int64_t count, const void* dy, const void* y, void* dx, bool accumulate_dx) override {
    run("relu_backward", [&] { gpu::relu_backward(stream(), type_, count, dy, y, dx, accumulate_dx); });
  }
  void add(std::int64_t count, const void* a, const void* b, void* y) override {
    run("add", [&] { gpu::add(stream(), type_, count, a, b, y); });
  }
  void accumulate(std::int64_t count, const void* x, void* y) override {
    run("accumulate", [&] { gpu::add(stream(), type_, count, y, x, y); });
  }
  void dropout(std::int64_t count, double p, const RandomKey& key, const void* x, void* y) override {
    run("dropout", [&] { gpu::dropout(stream(), type_, count, p, key, x, y, false); });
  }
  void dropout_backward(std::int64_t count, double p, const RandomKey& key, const void* dy, void* dx,
                        bool accumulate_dx) override {
    run("dropout_backward", [&] { gpu::dropout(stream(), type_, count, p, key, dy, dx, accumulate_dx); });
  }

  void embedding(std::int64_t count, std::int64_t dim, const std::int32_t* ids, const void* weight, void* y) override {
    run("embedding", [&] { gpu::embedding(stream(), type_, count, dim, ids, weight, y); });
  }
  void embedding_backward(std::int64_t count, std::int64_t dim, std::int64_t rows, const std::int32_t* ids,
                          const void* dy, Master* dweight, bool accumulate_dw) override {
    if (!accumulate_dw) zero(dweight, static_cast<std::size_t>(rows * dim) * sizeof(float));
    run("embedding_backward", [&] { gpu::embedding_backward(stream(), type_, count, dim, rows, ids, dy, f(dweight)); });
  }
  void add_broadcast(std::int64_t batch, std::int64_t inner, const void* x, const void* weight, void* y) override {
    run("add_broadcast", [&] { gpu::add_broadcast(stream(), type_, batch, inner, x, weight, y); });
  }

  // Three score matrices: probabilities, dropped probabilities, their gradient.
  std::size_t prepare(const AttentionDesc& desc) override { return 3 * score_bytes(desc); }
  void attention(const AttentionDesc& desc, const RandomKey& key, const void* qkv, void* y, Master* log_sum,
                 void* scratch) override {
    raw_scores(desc, qkv, scratch);
    run("attention", [&] {
      gpu::causal_softmax(stream(), type_, desc.batch * desc.heads, desc.tokens, scale(desc), desc.dropout, key,
                          scratch, f(log_sum));
    });
    // y = P V
    per_batch(desc, [&](std::int64_t b, gpu::BatchedProduct p) {
      p.m = desc.head_dim, p.n = p.k = desc.tokens;
      p.a = part(desc, qkv, b, 2), p.lda = qkv_row(desc), p.stride_a = desc.head_dim;
      p.b = score_of(desc, scratch, b), p.ldb = desc.tokens, p.stride_b = desc.tokens * desc.tokens;
      p.c = row_of(desc, y, b), p.ldc = desc.heads * desc.head_dim, p.stride_c = desc.head_dim;
      blas_.batched(p);
    });
  }
  void attention_backward(const AttentionDesc& desc, const RandomKey& key, const void* dy, const void* qkv, const void*,
                          const Master* log_sum, void* dqkv, void* scratch) override {
    void* p_scores = scratch;
    void* dropped = desc.dropout > 0 ? static_cast<char*>(scratch) + score_bytes(desc) : p_scores;
    void* dscores = static_cast<char*>(scratch) + 2 * score_bytes(desc);
    const std::int64_t matrices = desc.batch * desc.heads;
    const std::int64_t square = desc.tokens * desc.tokens, y_row = desc.heads * desc.head_dim;
    raw_scores(desc, qkv, p_scores);
    run("attention_backward", [&] {
      gpu::causal_softmax_again(stream(), type_, matrices, desc.tokens, scale(desc), desc.dropout, key, p_scores,
                                dropped, f(log_sum));
    });
    per_batch(desc, [&](std::int64_t b, gpu::BatchedProduct p) {
      // dV = dropped^T dY
      p.m = desc.head_dim, p.n = p.k = desc.tokens, p.transpose_b = true;
      p.a = row_of(desc, dy, b), p.lda = y_row, p.stride_a = desc.head_dim;
      p.b = score_of(desc, dropped, b), p.ldb = desc.tokens, p.stride_b = square;
      p.c = part(desc, dqkv, b, 2), p.ldc = qkv_row(desc), p.stride_c = desc.head_dim;
      blas_.batched(p);
      // d(dropped) = dY V^T
      gpu::BatchedProduct q;
      q.batch = desc.heads, q.m = q.n = desc.tokens, q.k = desc.head_dim, q.transpose_a = true;
      q.a = part(desc, qkv, b, 2), q.lda = qkv_row(desc), q.stride_a = desc.head_dim;
      q.b = row_of(desc, dy, b), q.ldb = y_row, q.stride_b = desc.head_dim;
      q.c = score_of(desc, dscores, b), q.ldc = desc.tokens, q.stride_c = square;
      blas_.batched(q);
    });
    run("attention_backward", [&] {
      gpu::causal_softmax_backward(stream(), type_, matrices, desc.tokens, scale(desc), desc.dropout, key, p_scores,
                                   dscores);
    });
    per_batch(desc, [&](std::int64_t b, gpu::BatchedProduct p) {
      // dQ = dS K, dK = dS^T Q
      p.m = desc.head_dim, p.n = p.k = desc.tokens;
      p.a = part(desc, qkv, b, 1), p.lda = qkv_row(desc), p.stride_a = desc.head_dim;
      p.b = score_of(desc, dscores, b), p.ldb = desc.tokens, p.stride_b = square;
      p.c = part(desc, dqkv, b, 0), p.ldc = qkv_row(desc), p.stride_c = desc.head_dim;
      blas_.batched(p);
      p.a = part(desc, qkv, b, 0), p.transpose_b = true, p.c = part(desc, dqkv, b, 1);
      blas_.batched(p);
    });
  }

  void max_pool(const PoolDesc& desc, const void* x, void* y, std::uint8_t* index) override {
    run("max_pool", [&] { gpu::max_pool(stream(), type_, desc, x, y, index); });
  }
  void max_pool_backward(const PoolDesc& desc, const void* dy, const std::uint8_t* index, void* dx,
                         bool accumulate_dx) override {
    run("max_pool_backward", [&] { gpu::max_pool_backward(stream(), type_, desc, dy, index, dx, accumulate_dx); });
  }
  void mean_pool(std::int64_t n, std::int64_t positions, std::int64_t channels, const void* x, void* y) override {
    run("mean_pool", [&] { gpu::mean_pool(stream(), type_, n, positions, channels, x, y); });
  }
  void mean_pool_backward(std::int64_t n, std::int64_t positions, std::int64_t channels, const void* dy, void* dx,
                          bool accumulate_dx) override {
    run("mean_pool_backward",
        [&] { gpu::mean_pool_backward(stream(), type_, n, positions, channels, dy, dx, accumulate_dx); });
  }

  std::size_t prepare(const CrossEntropyDesc& desc) override {
    return static_cast<std::size_t>(std::max<std::int64_t>(desc.rows, 1)) * 2 * sizeof(double);
  }
  void cross_entropy(const CrossEntropyDesc& desc, const void* logits, const std::int32_t* targets, double* loss,
                     Master* log_sum, void* scratch) override {
    run("cross_entropy",
        [&] { gpu::cross_entropy(stream(), type_, desc, logits, targets, loss, f(log_sum), scratch); });
  }
  void cross_entropy_backward(const CrossEntropyDesc& desc, const void* logits, const std::int32_t* targets,
                              const Master* log_sum, double loss_scale, void* dlogits) override {
    run("cross_entropy_backward", [&] {
      gpu::cross_entropy_backward(stream(), type_, desc, logits, targets, f(log_sum), loss_scale, dlogits,
                                  &small_->kept);
    });
  }
  void mse(std::int64_t count, const void* prediction, const void* target, double* loss) override {
    run("mse", [&] { gpu::mse(stream(), type_, count, prediction, target, loss); });
  }
  void mse_backward(std::int64_t count, const void* prediction, const void* target, double loss_scale,
                    void* dprediction) override {
    run("mse_backward",
        [&] { gpu::mse_backward(stream(), type_, count, prediction, target, loss_scale, dprediction); });
  }

  void sgd(std::span<const UpdateChunk> chunks, const SgdUpdate& update) override {
    run("sgd", [&] {
      for (const UpdateChunk& chunk : chunks) gpu::sgd(stream(), type_, chunk, update);
    });
  }
  void adamw(std::span<const UpdateChunk> chunks, const AdamwUpdate& update) override {
    run("adamw", [&] {
      for (const UpdateChunk& chunk : chunks) gpu::adamw(stream(), type_, chunk, update);
    });
  }
  GradientNorm gradient_norm(std::span<const UpdateChunk> chunks, double unscale) override {
    context_.zero(small_, sizeof(SmallMemory));
    run("gradient_norm", [&] {
      for (const UpdateChunk& chunk : chunks) {
        gpu::gradient_norm(stream(), static_cast<const float*>(chunk.gradient), chunk.count, unscale, &small_->squared,
                           &small_->found_inf, norm_scratch_);
      }
    });
    SmallMemory result;
    context_.download(&result, small_, sizeof(result));
    return {result.squared, result.found_inf != 0};
  }

 private:
  gpu::Stream stream() { return static_cast<gpu::Stream>(context_.compute()); }
  template <typename F>
  void run(const char* what, F launch) {
    if (!context_.status()) return;
    launch();
    context_.note_launches(what);
  }
  static float* f(Master* memory) { return static_cast<float*>(memory); }
  static const float* f(const Master* memory) { return static_cast<const float*>(memory); }

  DType out_type(const GemmDesc& desc) const { return desc.master_out ? DType::f32 : type_; }
  void add_bias(const GemmDesc& desc, const Master* bias, void* c) {
    run("add_bias", [&] { gpu::add_bias(stream(), out_type(desc), desc.m, desc.n, f(bias), c); });
  }
  // Grows at plan time; in a step only for sums that no plan announced.
  void reserve_column_scratch(std::int64_t columns) {
    if (columns <= scratch_columns_) return;
    if (column_scratch_) {
      context_.synchronize();
      context_.release(column_scratch_);
    }
    column_scratch_ = context_.allocate(gpu::column_scratch_bytes(columns), "kernels");
    scratch_columns_ = columns;
  }

  static double scale(const AttentionDesc& desc) { return 1.0 / std::sqrt(static_cast<double>(desc.head_dim)); }
  static std::int64_t qkv_row(const AttentionDesc& desc) { return 3 * desc.heads * desc.head_dim; }
  std::size_t score_bytes(const AttentionDesc& desc) const {
    const std::size_t bytes =
        static_cast<std::size_t>(desc.batch * desc.heads * desc.tokens * desc.tokens) * size_of(type_);
    return (bytes + 255) / 256 * 256;
  }
  template <typename P>
  P* offset(P* memory, std::int64_t elements) const {
    using Byte = std::conditional_t<std::is_const_v<P>, const char, char>;
    return static_cast<Byte*>(memory) + elements * static_cast<std::int64_t>(size_of(type_));
  }
  // q, k, v of sequence b: which 0, 1, 2.
  template <typename P>
  P* part(const AttentionDesc& desc, P* qkv, std::int64_t b, std::int64_t which) const {
    return offset(qkv, b * desc.tokens * qkv_row(desc) + which * desc.heads * desc.head_dim);
  }
  template <typename P>
  P* row_of(const AttentionDesc& desc, P* y, std::int64_t b) const {
    return offset(y, b * desc.tokens * desc.heads * desc.head_dim);
  }
  template <typename P>
  P* score_of(const AttentionDesc& desc, P* scores, std::int64_t b) const {
    return offset(scores, b * desc.heads * desc.tokens * desc.tokens);
  }
  // Heads are one strided batch; sequences have another stride, so each is a call of its own.
  template <typename F>
  void per_batch(const AttentionDesc& desc, F call) {
    gpu::BatchedProduct product;
    product.batch = desc.heads;
    for (std::int64_t b = 0; b < desc.batch; ++b) call(b, product);
  }
  // scores[b, h] = Q K^T, without the scale.
  void raw_scores(const AttentionDesc& desc, const void* qkv, void* scores) {
    per_batch(desc, [&](std::int64_t b, gpu::BatchedProduct p) {
      p.m = p.n = desc.tokens, p.k = desc.head_dim, p.transpose_a = true;
      p.a = part(desc, qkv, b, 1), p.lda = qkv_row(desc), p.stride_a = desc.head_dim;
      p.b = part(desc, qkv, b, 0), p.ldb = qkv_row(desc), p.stride_b = desc.head_dim;
      p.c = score_of(desc, scores, b), p.ldc = desc.tokens, p.stride_c = desc.tokens * desc.tokens;
      blas_.batched(p);
    });
  }

  cuda::DeviceContext& context_;
  DType type_;
  bool tf32_;
  gpu::Blas blas_;
  gpu::Convolutions convolutions_;
  SmallMemory* small_ = nullptr;
  double* norm_scratch_ = nullptr;
  void* column_scratch_ = nullptr;
  std::int64_t scratch_columns_ = 0;
};

}  // namespace

Result<std::unique_ptr<Kernels>> make_cuda_kernels(cuda::DeviceContext& context, const CudaKernelsOptions& options) {
  if (options.precision != DType::f32 && options.precision != DType::bf16 && options.precision != DType::f16) {
    return Error(Errc::invalid_argument,
                 fmt::format("cuda kernels: precision {} is not one of f32, bf16, f16", name_of(options.precision)));
  }
  std::unique_ptr<Kernels> kernels = std::make_unique<CudaKernels>(context, options);
  if (!context.status()) return context.status().error();
  return kernels;
}

}  // namespace ddprun::engine
