#include "worker/kernels/low_precision.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "worker/tensor/half.h"

namespace ddprun::engine {

namespace {

using I = std::int64_t;

class LowPrecision final : public Kernels {
 public:
  LowPrecision(std::unique_ptr<Kernels> f32, DType type) : k_(std::move(f32)), type_(type), slots_(8) {}
  ~LowPrecision() override = default;

  std::string description() const override { return std::string(name_of(type_)) + " over " + k_->description(); }
  DType activation_type() const override { return type_; }

  void* allocate(std::size_t size_bytes) override { return k_->allocate(size_bytes); }
  void release(void* memory) override { k_->release(memory); }
  void copy_in(void* device, const void* host, std::size_t n) override { k_->copy_in(device, host, n); }
  void copy_out(void* host, const void* device, std::size_t n) override { k_->copy_out(host, device, n); }
  void synchronize() override {}
  void zero(void* memory, std::size_t n) override { k_->zero(memory, n); }
  void copy(void* out, const void* in, std::size_t n) override { k_->copy(out, in, n); }
  void to_low(void* low, const Master* master, I n) override { narrow(static_cast<const float*>(master), low, n); }
  void from_f32(void* out, const float* in, I n) override { narrow(in, out, n); }
  void to_f32(float* out, const void* in, I n) override { widen(in, out, n); }

  std::size_t prepare(const GemmDesc& desc) override { return k_->prepare(desc); }
  void gemm(const GemmDesc& g, const void* a, const void* b, const Master* bias, void* c, void* scratch) override {
    const float* x = in(0, a, g.m * g.k);
    const float* y = in(1, b, g.k * g.n);
    if (g.master_out) return k_->gemm(g, x, y, bias, c, scratch);
    float* out = g.accumulate ? in(2, c, g.m * g.n) : slot(2, g.m * g.n);
    k_->gemm(g, x, y, bias, out, scratch);
    narrow(out, c, g.m * g.n);
  }
  void column_sums(I rows, I columns, const void* x, Master* out, bool accumulate) override {
    k_->column_sums(rows, columns, in(0, x, rows * columns), out, accumulate);
  }

  std::size_t prepare(const ConvDesc& desc) override { return k_->prepare(desc); }
  void conv_forward(const ConvDesc& s, const void* x, const void* weight, void* y, void* scratch) override {
    float* out = slot(2, outputs(s));
    k_->conv_forward(s, in(0, x, inputs(s)), in(1, weight, weights(s)), out, scratch);
    narrow(out, y, outputs(s));
  }
  void conv_backward_data(const ConvDesc& s, const void* dy, const void* weight, void* dx, void* scratch) override {
    float* out = slot(2, inputs(s));
    k_->conv_backward_data(s, in(0, dy, outputs(s)), in(1, weight, weights(s)), out, scratch);
    narrow(out, dx, inputs(s));
  }
  void conv_backward_weight(const ConvDesc& s, const void* x, const void* dy, Master* dweight, bool accumulate,
                            void* scratch) override {
    k_->conv_backward_weight(s, in(0, x, inputs(s)), in(1, dy, outputs(s)), dweight, accumulate, scratch);
  }

  std::size_t prepare(const BatchNormDesc& desc) override { return k_->prepare(desc); }
  void batch_norm_train(const BatchNormDesc& s, const void* x, const void* residual, const Master* gamma,
                        const Master* beta, Master* running_mean, Master* running_var, Master* mean, Master* rstd,
                        void* y, void* scratch) override {
    const I n = s.rows * s.channels;
    float* out = slot(2, n);
    k_->batch_norm_train(s, in(0, x, n), in(1, residual, n), gamma, beta, running_mean, running_var, mean, rstd, out,
                         scratch);
    narrow(out, y, n);
  }
  void batch_norm_eval(const BatchNormDesc& s, const void* x, const void* residual, const Master* gamma,
                       const Master* beta, const Master* running_mean, const Master* running_var, void* y) override {
    const I n = s.rows * s.channels;
    float* out = slot(2, n);
    k_->batch_norm_eval(s, in(0, x, n), in(1, residual, n), gamma, beta, running_mean, running_var, out);
    narrow(out, y, n);
  }
  void batch_norm_backward(const BatchNormDesc& s, const void* dy, const void* x, const void* y, const Master* gamma,
                           const Master* mean, const Master* rstd, void* dx, void* dresidual, bool accumulate_residual,
                           Master* dgamma, Master* dbeta, bool accumulate_parameters, void* scratch) override {
    const I n = s.rows * s.channels;
    float* out = dx == nullptr ? nullptr : slot(3, n);
    float* other = dresidual == nullptr ? nullptr : (accumulate_residual ? in(4, dresidual, n) : slot(4, n));
    k_->batch_norm_backward(s, in(0, dy, n), in(1, x, n), in(2, s.relu ? y : x, n), gamma, mean, rstd, out, other,
                            accumulate_residual, dgamma, dbeta, accumulate_parameters, scratch);
    if (dx != nullptr) narrow(out, dx, n);
    if (dresidual != nullptr) narrow(other, dresidual, n);
  }

  std::size_t prepare(const LayerNormDesc& desc) override { return k_->prepare(desc); }
  void layer_norm(const LayerNormDesc& s, const void* x, const Master* gamma, const Master* beta, Master* mean,
                  Master* rstd, void* y) override {
    const I n = s.rows * s.columns;
    float* out = slot(1, n);
    k_->layer_norm(s, in(0, x, n), gamma, beta, mean, rstd, out);
    narrow(out, y, n);
  }
  void layer_norm_backward(const LayerNormDesc& s, const void* dy, const void* x, const Master* gamma,
                           const Master* mean, const Master* rstd, void* dx, bool accumulate_dx, Master* dgamma,
                           Master* dbeta, bool accumulate_parameters, void* scratch) override {
    const I n = s.rows * s.columns;
    float* out = target(2, dx, n, accumulate_dx);
    k_->layer_norm_backward(s, in(0, dy, n), in(1, x, n), gamma, mean, rstd, out, accumulate_dx, dgamma, dbeta,
                            accumulate_parameters, scratch);
    if (dx != nullptr) narrow(out, dx, n);
  }

  void gelu(I n, const void* x, void* y) override {
    float* v = in(0, x, n);
    k_->gelu(n, v, v);
    narrow(v, y, n);
  }
  void gelu_backward(I n, const void* dy, const void* x, void* dx, bool accumulate) override {
    float* out = target(2, dx, n, accumulate);
    k_->gelu_backward(n, in(0, dy, n), in(1, x, n), out, accumulate);
    narrow(out, dx, n);
  }
  void silu(I n, const void* x, void* y) override {
    float* v = in(0, x, n);
    k_->silu(n, v, v);
    narrow(v, y, n);
  }
  void silu_backward(I n, const void* dy, const void* x, void* dx, bool accumulate) override {
    float* out = target(2, dx, n, accumulate);
    k_->silu_backward(n, in(0, dy, n), in(1, x, n), out, accumulate);
    narrow(out, dx, n);
  }
  void relu(I n, const void* x, void* y) override {
    float* v = in(0, x, n);
    k_->relu(n, v, v);
    narrow(v, y, n);
  }
  void relu_backward(I n, const void* dy, const void* y, void* dx, bool accumulate) override {
    float* out = target(2, dx, n, accumulate);
    k_->relu_backward(n, in(0, dy, n), in(1, y, n), out, accumulate);
    narrow(out, dx, n);
  }
  void add(I n, const void* a, const void* b, void* y) override {
    float* v = in(0, a, n);
    k_->add(n, v, in(1, b, n), v);
    narrow(v, y, n);
  }
  void accumulate(I n, const void* x, void* y) override { add(n, y, x, y); }
  void dropout(I n, double p, const RandomKey& key, const void* x, void* y) override {
    float* v = in(0, x, n);
    k_->dropout(n, p, key, v, v);
    narrow(v, y, n);
  }
  void dropout_backward(I n, double p, const RandomKey& key, const void* dy, void* dx, bool accumulate) override {
    float* out = target(1, dx, n, accumulate);
    k_->dropout_backward(n, p, key, in(0, dy, n), out, accumulate);
    narrow(out, dx, n);
  }

  void embedding(I n, I dim, const std::int32_t* ids, const void* weight, void* y) override {
    const std::uint16_t* from = static_cast<const std::uint16_t*>(weight);
    std::uint16_t* to = static_cast<std::uint16_t*>(y);
    for (I i = 0; i < n; ++i) std::copy_n(from + ids[i] * dim, dim, to + i * dim);
  }
  void embedding_backward(I n, I dim, I rows, const std::int32_t* ids, const void* dy, Master* dweight,
                          bool accumulate) override {
    k_->embedding_backward(n, dim, rows, ids, in(0, dy, n * dim), dweight, accumulate);
  }
  void add_broadcast(I batch, I inner, const void* x, const void* weight, void* y) override {
    float* v = in(0, x, batch * inner);
    k_->add_broadcast(batch, inner, v, in(1, weight, inner), v);
    narrow(v, y, batch * inner);
  }

  std::size_t prepare(const AttentionDesc& desc) override { return k_->prepare(desc); }
  void attention(const AttentionDesc& s, const RandomKey& key, const void* qkv, void* y, Master* log_sum,
                 void* scratch) override {
    const I n = s.batch * s.tokens * s.heads * s.head_dim;
    float* out = slot(1, n);
    k_->attention(s, key, in(0, qkv, 3 * n), out, log_sum, scratch);
    narrow(out, y, n);
  }
  void attention_backward(const AttentionDesc& s, const RandomKey& key, const void* dy, const void* qkv, const void* y,
                          const Master* log_sum, void* dqkv, void* scratch) override {
    const I n = s.batch * s.tokens * s.heads * s.head_dim;
    float* out = slot(3, 3 * n);
    k_->attention_backward(s, key, in(0, dy, n), in(1, qkv, 3 * n), in(2, y, n), log_sum, out, scratch);
    narrow(out, dqkv, 3 * n);
  }

  void max_pool(const PoolDesc& s, const void* x, void* y, std::uint8_t* index) override {
    float* out = slot(1, s.n * s.oh() * s.ow() * s.c);
    k_->max_pool(s, in(0, x, s.n * s.h * s.w * s.c), out, index);
    narrow(out, y, s.n * s.oh() * s.ow() * s.c);
  }
  void max_pool_backward(const PoolDesc& s, const void* dy, const std::uint8_t* index, void* dx,
                         bool accumulate) override {
    const I n = s.n * s.h * s.w * s.c;
    float* out = target(1, dx, n, accumulate);
    k_->max_pool_backward(s, in(0, dy, s.n * s.oh() * s.ow() * s.c), index, out, accumulate);
    narrow(out, dx, n);
  }
  void mean_pool(I n, I positions, I channels, const void* x, void* y) override {
    float* out = slot(1, n * channels);
    k_->mean_pool(n, positions, channels, in(0, x, n * positions * channels), out);
    narrow(out, y, n * channels);
  }
  void mean_pool_backward(I n, I positions, I channels, const void* dy, void* dx, bool accumulate) override {
    const I count = n * positions * channels;
    float* out = target(1, dx, count, accumulate);
    k_->mean_pool_backward(n, positions, channels, in(0, dy, n * channels), out, accumulate);
    narrow(out, dx, count);
  }

  std::size_t prepare(const CrossEntropyDesc& desc) override { return k_->prepare(desc); }
  void cross_entropy(const CrossEntropyDesc& s, const void* logits, const std::int32_t* targets, double* loss,
                     Master* log_sum, void* scratch) override {
    k_->cross_entropy(s, in(0, logits, s.rows * s.classes), targets, loss, log_sum, scratch);
  }
  void cross_entropy_backward(const CrossEntropyDesc& s, const void* logits, const std::int32_t* targets,
                              const Master* log_sum, double loss_scale, void* dlogits) override {
    float* v = in(0, logits, s.rows * s.classes);
    k_->cross_entropy_backward(s, v, targets, log_sum, loss_scale, v);
    narrow(v, dlogits, s.rows * s.classes);
  }
  void mse(I n, const void* prediction, const void* target_values, double* loss) override {
    k_->mse(n, in(0, prediction, n), in(1, target_values, n), loss);
  }
  void mse_backward(I n, const void* prediction, const void* target_values, double loss_scale,
                    void* dprediction) override {
    float* v = in(0, prediction, n);
    k_->mse_backward(n, v, in(1, target_values, n), loss_scale, v);
    narrow(v, dprediction, n);
  }

  void sgd(std::span<const UpdateChunk> chunks, const SgdUpdate& update) override {
    k_->sgd(chunks, update);
    refresh(chunks);
  }
  void adamw(std::span<const UpdateChunk> chunks, const AdamwUpdate& update) override {
    k_->adamw(chunks, update);
    refresh(chunks);
  }
  GradientNorm gradient_norm(std::span<const UpdateChunk> chunks, double unscale) override {
    return k_->gradient_norm(chunks, unscale);
  }

 private:
  static I inputs(const ConvDesc& s) { return s.n * s.h * s.w * s.c; }
  static I outputs(const ConvDesc& s) { return s.n * s.oh() * s.ow() * s.oc; }
  static I weights(const ConvDesc& s) { return s.oc * s.c * s.kernel * s.kernel; }

  // Widening memory by role, grown during the first step and constant afterwards.
  float* slot(std::size_t i, I count) {
    if (slots_[i].size() < static_cast<std::size_t>(count)) slots_[i].resize(static_cast<std::size_t>(count));
    return slots_[i].data();
  }
  float* in(std::size_t i, const void* low, I count) {
    if (low == nullptr) return nullptr;
    float* wide = slot(i, count);
    widen(low, wide, count);
    return wide;
  }
  float* target(std::size_t i, const void* low, I count, bool accumulate) {
    if (low == nullptr) return nullptr;
    return accumulate ? in(i, low, count) : slot(i, count);
  }

  void widen(const void* low, float* wide, I count) const {
    const std::uint16_t* bits = static_cast<const std::uint16_t*>(low);
    if (type_ == DType::bf16) {
      for (I i = 0; i < count; ++i) wide[i] = bf16_to_f32(bits[i]);
    } else {
      for (I i = 0; i < count; ++i) wide[i] = f16_to_f32(bits[i]);
    }
  }
  void narrow(const float* wide, void* low, I count) const {
    std::uint16_t* bits = static_cast<std::uint16_t*>(low);
    if (type_ == DType::bf16) {
      for (I i = 0; i < count; ++i) bits[i] = f32_to_bf16(wide[i]);
    } else {
      for (I i = 0; i < count; ++i) bits[i] = f32_to_f16(wide[i]);
    }
  }
  void refresh(std::span<const UpdateChunk> chunks) {
    for (const UpdateChunk& c : chunks) {
      if (c.low != nullptr) to_low(c.low, c.parameter, c.count);
    }
  }

  std::unique_ptr<Kernels> k_;
  DType type_;
  std::vector<std::vector<float>> slots_;
};

}  // namespace

std::unique_ptr<Kernels> make_low_precision(std::unique_ptr<Kernels> f32, DType type) {
  return std::make_unique<LowPrecision>(std::move(f32), type);
}

}  // namespace ddprun::engine
