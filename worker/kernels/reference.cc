// Plain loops in double, written for reading: the oracle of every other backend.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

#include "worker/kernels/host_memory.h"
#include "worker/kernels/kernels.h"

namespace ddprun::engine {
namespace {

using I = std::int64_t;

const double* d(const void* p) { return static_cast<const double*>(p); }
double* d(void* p) { return static_cast<double*>(p); }
void put(double& out, double value, bool accumulate) { out = accumulate ? out + value : value; }

// Kept with probability 1 - p: the word is below (1 - p) * 2^32.
bool kept(const RandomKey& key, I element, double p) {
  const auto words = random_block(key, static_cast<std::uint64_t>(element) / 4);
  return static_cast<double>(words[static_cast<std::size_t>(element % 4)]) < (1 - p) * 0x1p32;
}

class Reference final : public Kernels {
 public:
  std::string description() const override { return "reference f64"; }
  DType activation_type() const override { return DType::f64; }

  void* allocate(std::size_t size_bytes) override { return allocate_host(size_bytes); }
  void release(void* memory) override { release_host(memory); }
  void copy_in(void* device, const void* host, std::size_t n) override { copy(device, host, n); }
  void copy_out(void* host, const void* device, std::size_t n) override { copy(host, device, n); }
  void synchronize() override {}
  void zero(void* memory, std::size_t n) override { std::memset(memory, 0, n); }
  void copy(void* out, const void* in, std::size_t n) override {
    if (n > 0) std::memcpy(out, in, n);
  }
  void to_low(void* low, const Master* master, I n) override { copy(low, master, static_cast<std::size_t>(n) * 8); }
  void from_f32(void* out, const float* in, I n) override { std::copy(in, in + n, d(out)); }
  void to_f32(float* out, const void* in, I n) override {
    for (I i = 0; i < n; ++i) out[i] = static_cast<float>(d(in)[i]);
  }

  std::size_t prepare(const GemmDesc&) override { return 0; }
  void gemm(const GemmDesc& g, const void* a, const void* b, const Master* bias, void* c, void*) override {
    for (I i = 0; i < g.m; ++i) {
      for (I j = 0; j < g.n; ++j) {
        double sum = g.bias ? d(bias)[j] : 0;
        for (I k = 0; k < g.k; ++k) {
          const double x = g.transpose_a ? d(a)[k * g.m + i] : d(a)[i * g.k + k];
          const double y = g.transpose_b ? d(b)[j * g.k + k] : d(b)[k * g.n + j];
          sum += x * y;
        }
        put(d(c)[i * g.n + j], sum, g.accumulate);
      }
    }
  }
  void column_sums(I rows, I columns, const void* x, Master* out, bool accumulate) override {
    for (I j = 0; j < columns; ++j) {
      double sum = 0;
      for (I i = 0; i < rows; ++i) sum += d(x)[i * columns + j];
      put(d(out)[j], sum, accumulate);
    }
  }

  std::size_t prepare(const ConvDesc&) override { return 0; }

  // Calls visit(y index, x index, weight index) for every product of the convolution.
  template <typename Visit>
  static void each_product(const ConvDesc& s, Visit visit) {
    for (I n = 0; n < s.n; ++n)
      for (I oy = 0; oy < s.oh(); ++oy)
        for (I ox = 0; ox < s.ow(); ++ox)
          for (I ky = 0; ky < s.kernel; ++ky)
            for (I kx = 0; kx < s.kernel; ++kx) {
              const I iy = oy * s.stride + ky - s.padding, ix = ox * s.stride + kx - s.padding;
              if (iy < 0 || iy >= s.h || ix < 0 || ix >= s.w) continue;
              for (I o = 0; o < s.oc; ++o)
                for (I c = 0; c < s.c; ++c) {
                  visit(((n * s.oh() + oy) * s.ow() + ox) * s.oc + o, ((n * s.h + iy) * s.w + ix) * s.c + c,
                        ((o * s.c + c) * s.kernel + ky) * s.kernel + kx);
                }
            }
  }
  void conv_forward(const ConvDesc& s, const void* x, const void* weight, void* y, void*) override {
    std::fill_n(d(y), s.n * s.oh() * s.ow() * s.oc, 0.0);
    each_product(s, [&](I iy, I ix, I iw) { d(y)[iy] += d(x)[ix] * d(weight)[iw]; });
  }
  void conv_backward_data(const ConvDesc& s, const void* dy, const void* weight, void* dx, void*) override {
    std::fill_n(d(dx), s.n * s.h * s.w * s.c, 0.0);
    each_product(s, [&](I iy, I ix, I iw) { d(dx)[ix] += d(dy)[iy] * d(weight)[iw]; });
  }
  void conv_backward_weight(const ConvDesc& s, const void* x, const void* dy, Master* dweight, bool accumulate,
                            void*) override {
    if (!accumulate) std::fill_n(d(dweight), s.oc * s.c * s.kernel * s.kernel, 0.0);
    each_product(s, [&](I iy, I ix, I iw) { d(dweight)[iw] += d(dy)[iy] * d(x)[ix]; });
  }

  std::size_t prepare(const BatchNormDesc&) override { return 0; }
  void batch_norm_train(const BatchNormDesc& s, const void* x, const void* residual, const Master* gamma,
                        const Master* beta, Master* running_mean, Master* running_var, Master* mean, Master* rstd,
                        void* y, void*) override {
    const double rows = static_cast<double>(s.rows);
    for (I c = 0; c < s.channels; ++c) {
      double sum = 0, squares = 0;
      for (I r = 0; r < s.rows; ++r) sum += d(x)[r * s.channels + c];
      const double m = sum / rows;
      for (I r = 0; r < s.rows; ++r) squares += std::pow(d(x)[r * s.channels + c] - m, 2);
      d(mean)[c] = m;
      d(rstd)[c] = 1 / std::sqrt(squares / rows + s.eps);
      if (running_mean != nullptr) {
        d(running_mean)[c] += s.momentum * (m - d(running_mean)[c]);
        d(running_var)[c] += s.momentum * ((s.rows > 1 ? squares / (rows - 1) : 0) - d(running_var)[c]);
      }
    }
    normalise(s, x, residual, gamma, beta, d(mean), d(rstd), y);
  }
  static void normalise(const BatchNormDesc& s, const void* x, const void* residual, const Master* gamma,
                        const Master* beta, const double* mean, const double* rstd, void* y) {
    for (I i = 0; i < s.rows * s.channels; ++i) {
      const I c = i % s.channels;
      double value = (d(x)[i] - mean[c]) * rstd[c] * d(gamma)[c] + d(beta)[c];
      if (s.residual) value += d(residual)[i];
      d(y)[i] = s.relu && value < 0 ? 0 : value;
    }
  }
  void batch_norm_eval(const BatchNormDesc& s, const void* x, const void* residual, const Master* gamma,
                       const Master* beta, const Master* running_mean, const Master* running_var, void* y) override {
    std::vector<double> rstd(static_cast<std::size_t>(s.channels));
    for (std::size_t c = 0; c < rstd.size(); ++c) rstd[c] = 1 / std::sqrt(d(running_var)[c] + s.eps);
    normalise(s, x, residual, gamma, beta, d(running_mean), rstd.data(), y);
  }
  void batch_norm_backward(const BatchNormDesc& s, const void* dy, const void* x, const void* y, const Master* gamma,
                           const Master* mean, const Master* rstd, void* dx, void* dresidual, bool accumulate_residual,
                           Master* dgamma, Master* dbeta, bool accumulate_parameters, void*) override {
    const double rows = static_cast<double>(s.rows);
    for (I c = 0; c < s.channels; ++c) {
      auto g = [&](I i) { return s.relu && d(y)[i] <= 0 ? 0 : d(dy)[i]; };
      auto normal = [&](I i) { return (d(x)[i] - d(mean)[c]) * d(rstd)[c]; };
      double sum = 0, product = 0;
      for (I r = 0; r < s.rows; ++r) {
        const I i = r * s.channels + c;
        sum += g(i);
        product += g(i) * normal(i);
      }
      for (I r = 0; r < s.rows; ++r) {
        const I i = r * s.channels + c;
        const double gradient = g(i);
        const double input = d(gamma)[c] * d(rstd)[c] * (gradient - sum / rows - normal(i) * product / rows);
        if (dresidual != nullptr) put(d(dresidual)[i], gradient, accumulate_residual);
        if (dx != nullptr) d(dx)[i] = input;
      }
      if (dgamma != nullptr) put(d(dgamma)[c], product, accumulate_parameters);
      if (dbeta != nullptr) put(d(dbeta)[c], sum, accumulate_parameters);
    }
  }

  std::size_t prepare(const LayerNormDesc&) override { return 0; }
  void layer_norm(const LayerNormDesc& s, const void* x, const Master* gamma, const Master* beta, Master* mean,
                  Master* rstd, void* y) override {
    for (I r = 0; r < s.rows; ++r) {
      const double* row = d(x) + r * s.columns;
      double sum = 0, squares = 0;
      for (I c = 0; c < s.columns; ++c) sum += row[c];
      const double m = sum / static_cast<double>(s.columns);
      for (I c = 0; c < s.columns; ++c) squares += (row[c] - m) * (row[c] - m);
      d(mean)[r] = m;
      d(rstd)[r] = 1 / std::sqrt(squares / static_cast<double>(s.columns) + s.eps);
      for (I c = 0; c < s.columns; ++c) {
        d(y)[r * s.columns + c] = (row[c] - m) * d(rstd)[r] * d(gamma)[c] + d(beta)[c];
      }
    }
  }
  void layer_norm_backward(const LayerNormDesc& s, const void* dy, const void* x, const Master* gamma,
                           const Master* mean, const Master* rstd, void* dx, bool accumulate_dx, Master* dgamma,
                           Master* dbeta, bool accumulate_parameters, void*) override {
    auto normal = [&](I r, I c) { return (d(x)[r * s.columns + c] - d(mean)[r]) * d(rstd)[r]; };
    for (I c = 0; c < s.columns; ++c) {
      double sum = 0, product = 0;
      for (I r = 0; r < s.rows; ++r) {
        sum += d(dy)[r * s.columns + c];
        product += d(dy)[r * s.columns + c] * normal(r, c);
      }
      if (dgamma != nullptr) put(d(dgamma)[c], product, accumulate_parameters);
      if (dbeta != nullptr) put(d(dbeta)[c], sum, accumulate_parameters);
    }
    if (dx == nullptr) return;
    const double n = static_cast<double>(s.columns);
    for (I r = 0; r < s.rows; ++r) {
      double sum = 0, product = 0;
      for (I c = 0; c < s.columns; ++c) {
        const double g = d(dy)[r * s.columns + c] * d(gamma)[c];
        sum += g;
        product += g * normal(r, c);
      }
      for (I c = 0; c < s.columns; ++c) {
        const double g = d(dy)[r * s.columns + c] * d(gamma)[c];
        put(d(dx)[r * s.columns + c], d(rstd)[r] * (g - sum / n - normal(r, c) * product / n), accumulate_dx);
      }
    }
  }

  static constexpr double kGelu = 0.79788456080286535588;  // sqrt(2 / pi)
  void gelu(I n, const void* x, void* y) override {
    for (I i = 0; i < n; ++i) {
      const double v = d(x)[i];
      d(y)[i] = 0.5 * v * (1 + std::tanh(kGelu * (v + 0.044715 * v * v * v)));
    }
  }
  void gelu_backward(I n, const void* dy, const void* x, void* dx, bool accumulate) override {
    for (I i = 0; i < n; ++i) {
      const double v = d(x)[i];
      const double t = std::tanh(kGelu * (v + 0.044715 * v * v * v));
      const double slope = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * kGelu * (1 + 3 * 0.044715 * v * v);
      put(d(dx)[i], d(dy)[i] * slope, accumulate);
    }
  }
  void silu(I n, const void* x, void* y) override {
    for (I i = 0; i < n; ++i) d(y)[i] = d(x)[i] / (1 + std::exp(-d(x)[i]));
  }
  void silu_backward(I n, const void* dy, const void* x, void* dx, bool accumulate) override {
    for (I i = 0; i < n; ++i) {
      const double v = d(x)[i], gate = 1 / (1 + std::exp(-v));
      put(d(dx)[i], d(dy)[i] * gate * (1 + v * (1 - gate)), accumulate);
    }
  }
  void relu(I n, const void* x, void* y) override {
    for (I i = 0; i < n; ++i) d(y)[i] = d(x)[i] < 0 ? 0 : d(x)[i];
  }
  void relu_backward(I n, const void* dy, const void* y, void* dx, bool accumulate) override {
    for (I i = 0; i < n; ++i) put(d(dx)[i], d(y)[i] > 0 ? d(dy)[i] : 0, accumulate);
  }
  void add(I n, const void* a, const void* b, void* y) override {
    for (I i = 0; i < n; ++i) d(y)[i] = d(a)[i] + d(b)[i];
  }
  void accumulate(I n, const void* x, void* y) override {
    for (I i = 0; i < n; ++i) d(y)[i] += d(x)[i];
  }
  void dropout(I n, double p, const RandomKey& key, const void* x, void* y) override {
    for (I i = 0; i < n; ++i) d(y)[i] = kept(key, i, p) ? d(x)[i] / (1 - p) : 0;
  }
  void dropout_backward(I n, double p, const RandomKey& key, const void* dy, void* dx, bool accumulate) override {
    for (I i = 0; i < n; ++i) put(d(dx)[i], kept(key, i, p) ? d(dy)[i] / (1 - p) : 0, accumulate);
  }

  void embedding(I n, I dim, const std::int32_t* ids, const void* weight, void* y) override {
    for (I i = 0; i < n; ++i) std::copy_n(d(weight) + ids[i] * dim, dim, d(y) + i * dim);
  }
  void embedding_backward(I n, I dim, I rows, const std::int32_t* ids, const void* dy, Master* dweight,
                          bool accumulate) override {
    if (!accumulate) std::fill_n(d(dweight), rows * dim, 0.0);
    for (I i = 0; i < n; ++i) {
      for (I c = 0; c < dim; ++c) d(dweight)[ids[i] * dim + c] += d(dy)[i * dim + c];
    }
  }
  void add_broadcast(I batch, I inner, const void* x, const void* weight, void* y) override {
    for (I i = 0; i < batch * inner; ++i) d(y)[i] = d(x)[i] + d(weight)[i % inner];
  }

  std::size_t prepare(const AttentionDesc&) override { return 0; }

  // Probabilities of query t over keys 0..t, before dropout.
  static std::vector<double> probabilities(const AttentionDesc& s, const double* qkv, I b, I h, I t, double* log_sum) {
    const I row = 3 * s.heads * s.head_dim;
    const double* q = qkv + (b * s.tokens + t) * row + h * s.head_dim;
    std::vector<double> p(static_cast<std::size_t>(t + 1));
    double top = -std::numeric_limits<double>::infinity();
    for (I u = 0; u <= t; ++u) {
      const double* k = qkv + (b * s.tokens + u) * row + (s.heads + h) * s.head_dim;
      double score = 0;
      for (I e = 0; e < s.head_dim; ++e) score += q[e] * k[e];
      p[static_cast<std::size_t>(u)] = score / std::sqrt(static_cast<double>(s.head_dim));
      top = std::max(top, p[static_cast<std::size_t>(u)]);
    }
    double sum = 0;
    for (double& v : p) sum += v = std::exp(v - top);
    for (double& v : p) v /= sum;
    if (log_sum != nullptr) *log_sum = top + std::log(sum);
    return p;
  }
  static double mask(const AttentionDesc& s, const RandomKey& key, I b, I h, I t, I u) {
    if (s.dropout == 0) return 1;
    return kept(key, ((b * s.heads + h) * s.tokens + t) * s.tokens + u, s.dropout) ? 1 / (1 - s.dropout) : 0;
  }
  void attention(const AttentionDesc& s, const RandomKey& key, const void* qkv, void* y, Master* log_sum,
                 void*) override {
    const I row = 3 * s.heads * s.head_dim;
    for (I b = 0; b < s.batch; ++b)
      for (I h = 0; h < s.heads; ++h)
        for (I t = 0; t < s.tokens; ++t) {
          const auto p = probabilities(s, d(qkv), b, h, t, d(log_sum) + (b * s.heads + h) * s.tokens + t);
          double* out = d(y) + ((b * s.tokens + t) * s.heads + h) * s.head_dim;
          std::fill_n(out, s.head_dim, 0.0);
          for (I u = 0; u <= t; ++u) {
            const double* v = d(qkv) + (b * s.tokens + u) * row + (2 * s.heads + h) * s.head_dim;
            const double w = p[static_cast<std::size_t>(u)] * mask(s, key, b, h, t, u);
            for (I e = 0; e < s.head_dim; ++e) out[e] += w * v[e];
          }
        }
  }
  void attention_backward(const AttentionDesc& s, const RandomKey& key, const void* dy, const void* qkv, const void*,
                          const Master*, void* dqkv, void*) override {
    const I row = 3 * s.heads * s.head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
    std::fill_n(d(dqkv), s.batch * s.tokens * row, 0.0);
    for (I b = 0; b < s.batch; ++b)
      for (I h = 0; h < s.heads; ++h)
        for (I t = 0; t < s.tokens; ++t) {
          const auto p = probabilities(s, d(qkv), b, h, t, nullptr);
          const I at = (b * s.tokens + t) * row + h * s.head_dim;
          const double* g = d(dy) + ((b * s.tokens + t) * s.heads + h) * s.head_dim;
          std::vector<double> dp(p.size());
          double dot = 0;
          for (I u = 0; u <= t; ++u) {
            const I from = (b * s.tokens + u) * row + h * s.head_dim;
            const std::size_t i = static_cast<std::size_t>(u);
            const double m = mask(s, key, b, h, t, u);
            for (I e = 0; e < s.head_dim; ++e) {
              dp[i] += g[e] * d(qkv)[from + 2 * s.heads * s.head_dim + e] * m;
              d(dqkv)[from + 2 * s.heads * s.head_dim + e] += p[i] * m * g[e];
            }
            dot += dp[i] * p[i];
          }
          for (I u = 0; u <= t; ++u) {
            const I from = (b * s.tokens + u) * row + (s.heads + h) * s.head_dim;
            const std::size_t i = static_cast<std::size_t>(u);
            const double ds = p[i] * (dp[i] - dot) * scale;
            for (I e = 0; e < s.head_dim; ++e) {
              d(dqkv)[at + e] += ds * d(qkv)[from + e];
              d(dqkv)[from + e] += ds * d(qkv)[at + e];
            }
          }
        }
  }

  void max_pool(const PoolDesc& s, const void* x, void* y, std::uint8_t* index) override {
    each_window(s, [&](I out, I n, I oy, I ox, I c) {
      double best = -std::numeric_limits<double>::infinity();
      std::uint8_t where = 0;
      bool found = false;
      each_tap(s, oy, ox, [&](I iy, I ix, I tap) {
        const double v = d(x)[((n * s.h + iy) * s.w + ix) * s.c + c];
        if (found && !(v > best) && !std::isnan(v)) return;
        found = true;
        best = v;
        where = static_cast<std::uint8_t>(tap);
      });
      d(y)[out] = best;
      index[out] = where;
    });
  }
  void max_pool_backward(const PoolDesc& s, const void* dy, const std::uint8_t* index, void* dx,
                         bool accumulate) override {
    if (!accumulate) std::fill_n(d(dx), s.n * s.h * s.w * s.c, 0.0);
    each_window(s, [&](I out, I n, I oy, I ox, I c) {
      const I iy = oy * s.stride + index[out] / s.kernel - s.padding;
      const I ix = ox * s.stride + index[out] % s.kernel - s.padding;
      d(dx)[((n * s.h + iy) * s.w + ix) * s.c + c] += d(dy)[out];
    });
  }
  template <typename Visit>
  static void each_window(const PoolDesc& s, Visit visit) {
    for (I n = 0; n < s.n; ++n)
      for (I oy = 0; oy < s.oh(); ++oy)
        for (I ox = 0; ox < s.ow(); ++ox)
          for (I c = 0; c < s.c; ++c) visit(((n * s.oh() + oy) * s.ow() + ox) * s.c + c, n, oy, ox, c);
  }
  template <typename Visit>
  static void each_tap(const PoolDesc& s, I oy, I ox, Visit visit) {
    for (I ky = 0; ky < s.kernel; ++ky)
      for (I kx = 0; kx < s.kernel; ++kx) {
        const I iy = oy * s.stride + ky - s.padding, ix = ox * s.stride + kx - s.padding;
        if (iy >= 0 && iy < s.h && ix >= 0 && ix < s.w) visit(iy, ix, ky * s.kernel + kx);
      }
  }
  void mean_pool(I n, I positions, I channels, const void* x, void* y) override {
    for (I i = 0; i < n; ++i)
      for (I c = 0; c < channels; ++c) {
        double sum = 0;
        for (I p = 0; p < positions; ++p) sum += d(x)[(i * positions + p) * channels + c];
        d(y)[i * channels + c] = sum / static_cast<double>(positions);
      }
  }
  void mean_pool_backward(I n, I positions, I channels, const void* dy, void* dx, bool accumulate) override {
    for (I i = 0; i < n * positions * channels; ++i) {
      const I image = i / (positions * channels), c = i % channels;
      put(d(dx)[i], d(dy)[image * channels + c] / static_cast<double>(positions), accumulate);
    }
  }

  std::size_t prepare(const CrossEntropyDesc&) override { return 0; }
  void cross_entropy(const CrossEntropyDesc& s, const void* logits, const std::int32_t* targets, double* loss,
                     Master* log_sum, void*) override {
    double total = 0;
    I count = 0;
    for (I r = 0; r < s.rows; ++r) {
      const double* row = d(logits) + r * s.classes;
      const double top = *std::max_element(row, row + s.classes);
      double sum = 0, all = 0;
      for (I c = 0; c < s.classes; ++c) sum += std::exp(row[c] - top);
      const double lse = top + std::log(sum);
      d(log_sum)[r] = lse;
      if (targets[r] == s.ignore_index) continue;
      for (I c = 0; c < s.classes; ++c) all += lse - row[c];
      total +=
          (1 - s.label_smoothing) * (lse - row[targets[r]]) + s.label_smoothing / static_cast<double>(s.classes) * all;
      ++count;
    }
    *loss = total / static_cast<double>(count);
  }
  void cross_entropy_backward(const CrossEntropyDesc& s, const void* logits, const std::int32_t* targets,
                              const Master* log_sum, double loss_scale, void* dlogits) override {
    const I count = s.rows - std::count(targets, targets + s.rows, s.ignore_index);
    for (I r = 0; r < s.rows; ++r)
      for (I c = 0; c < s.classes; ++c) {
        const I i = r * s.classes + c;
        if (targets[r] == s.ignore_index) {
          d(dlogits)[i] = 0;
          continue;
        }
        double g = std::exp(d(logits)[i] - d(log_sum)[r]) - s.label_smoothing / static_cast<double>(s.classes);
        if (c == targets[r]) g -= 1 - s.label_smoothing;
        d(dlogits)[i] = g * loss_scale / static_cast<double>(count);
      }
  }
  void mse(I n, const void* prediction, const void* target, double* loss) override {
    double sum = 0;
    for (I i = 0; i < n; ++i) sum += std::pow(d(prediction)[i] - d(target)[i], 2);
    *loss = sum / static_cast<double>(n);
  }
  void mse_backward(I n, const void* prediction, const void* target, double loss_scale, void* dprediction) override {
    for (I i = 0; i < n; ++i) {
      d(dprediction)[i] = 2 * (d(prediction)[i] - d(target)[i]) * loss_scale / static_cast<double>(n);
    }
  }

  void sgd(std::span<const UpdateChunk> chunks, const SgdUpdate& u) override {
    for (const UpdateChunk& c : chunks)
      for (I i = 0; i < c.count; ++i) {
        double g = d(c.gradient)[i] * u.unscale * u.clip + c.decay * d(c.parameter)[i];
        if (u.momentum != 0) {
          double& buffer = d(c.state1)[i];
          buffer = u.first ? g : u.momentum * buffer + (1 - u.dampening) * g;
          g = u.nesterov ? g + u.momentum * buffer : buffer;
        }
        d(c.parameter)[i] -= u.lr * g;
      }
  }
  void adamw(std::span<const UpdateChunk> chunks, const AdamwUpdate& u) override {
    for (const UpdateChunk& c : chunks)
      for (I i = 0; i < c.count; ++i) {
        double &p = d(c.parameter)[i], &m = d(c.state1)[i], &v = d(c.state2)[i];
        double g = d(c.gradient)[i] * u.unscale * u.clip;
        if (u.decoupled) {
          p *= 1 - u.lr * c.decay;
        } else {
          g += c.decay * p;
        }
        m += (g - m) * (1 - u.beta1);
        v = u.beta2 * v + (1 - u.beta2) * g * g;
        p -= u.lr / u.correction1 * m / (std::sqrt(v) / std::sqrt(u.correction2) + u.eps);
      }
  }
  GradientNorm gradient_norm(std::span<const UpdateChunk> chunks, double unscale) override {
    GradientNorm result;
    for (const UpdateChunk& c : chunks)
      for (I i = 0; i < c.count; ++i) {
        const double g = d(c.gradient)[i] * unscale;
        result.squared += g * g;
        result.found_inf = result.found_inf || !std::isfinite(g);
      }
    return result;
  }
};

}  // namespace

std::unique_ptr<Kernels> make_reference_kernels() { return std::make_unique<Reference>(); }

}  // namespace ddprun::engine
