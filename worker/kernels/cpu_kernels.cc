// The f32 CPU backend: oneDNN for products and convolutions, the loops of cpu_loops.cc for all else. This file decides
// who does which part of the latter: work is cut into pieces that do not depend on the number of threads, and partial
// sums are added in the order of the pieces, so their results are the same to the bit for any number of threads.
// oneDNN cuts by the number of threads, which shows in the last bits of weight gradients.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "worker/kernels/cpu_dnnl.h"
#include "worker/kernels/cpu_loops.h"
#include "worker/kernels/host_memory.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/low_precision.h"

namespace ddprun::engine {
namespace {

using I = std::int64_t;

constexpr I kRange = 16384;  // elements per piece of an elementwise pass
constexpr I kParts = 16;     // pieces of a reduction over rows
constexpr I kQueries = 48;   // rows of the attention matrix at a time, a multiple of the tile height

const float* f(const void* p) { return static_cast<const float*>(p); }
float* f(void* p) { return static_cast<float*>(p); }
I padded(I floats) { return (floats + 15) / 16 * 16; }

// run(begin, count) over [0, n).
template <typename Run>
void ranges(I n, I piece, const Run& run) {
  const I pieces = (n + piece - 1) / piece;
  if (pieces <= 1) {
    if (n > 0) run(I{0}, n);
    return;
  }
#pragma omp parallel for schedule(static)
  for (I p = 0; p < pieces; ++p) run(p * piece, std::min(piece, n - p * piece));
}

class CpuKernels final : public Kernels {
 public:
  explicit CpuKernels(const char* instruction_set) : loops_(choose_loops(instruction_set)) {}

  std::string description() const override {
    return std::string("cpu f32, ") + loops_.name + ", " + std::to_string(omp_get_max_threads()) + " threads";
  }
  DType activation_type() const override { return DType::f32; }

  void* allocate(std::size_t size_bytes) override { return allocate_host(size_bytes); }
  void release(void* memory) override { release_host(memory); }
  void copy_in(void* device, const void* host, std::size_t n) override { copy(device, host, n); }
  void copy_out(void* host, const void* device, std::size_t n) override { copy(host, device, n); }
  void synchronize() override {}
  void zero(void* memory, std::size_t n) override {
    ranges(static_cast<I>(n), 4 * kRange,
           [&](I at, I count) { std::memset(static_cast<char*>(memory) + at, 0, static_cast<std::size_t>(count)); });
  }
  void copy(void* out, const void* in, std::size_t n) override {
    ranges(static_cast<I>(n), 4 * kRange, [&](I at, I count) {
      std::memcpy(static_cast<char*>(out) + at, static_cast<const char*>(in) + at, static_cast<std::size_t>(count));
    });
  }
  void to_low(void* low, const Master* master, I n) override { copy(low, master, static_cast<std::size_t>(n) * 4); }
  void from_f32(void* out, const float* in, I n) override { copy(out, in, static_cast<std::size_t>(n) * 4); }
  void to_f32(float* out, const void* in, I n) override { copy(out, in, static_cast<std::size_t>(n) * 4); }

  std::size_t prepare(const GemmDesc& desc) override { return dnnl_.prepare(desc); }
  void gemm(const GemmDesc& desc, const void* a, const void* b, const Master* bias, void* c, void* scratch) override {
    dnnl_.gemm(desc, f(a), f(b), f(bias), f(c), scratch);
  }
  void column_sums(I rows, I columns, const void* x, Master* out, bool accumulate) override {
    ranges(columns, rows * columns > kRange ? 64 : columns + 1,
           [&](I at, I count) { loops_.column_sums(rows, count, columns, f(x) + at, f(out) + at, accumulate); });
  }

  std::size_t prepare(const ConvDesc& desc) override { return dnnl_.prepare(desc); }
  void conv_forward(const ConvDesc& s, const void* x, const void* weight, void* y, void* scratch) override {
    dnnl_.conv_forward(s, f(x), f(weight), f(y), scratch);
  }
  void conv_backward_data(const ConvDesc& s, const void* dy, const void* weight, void* dx, void* scratch) override {
    dnnl_.conv_backward_data(s, f(dy), f(weight), f(dx), scratch);
  }
  void conv_backward_weight(const ConvDesc& s, const void* x, const void* dy, Master* dweight, bool add_to,
                            void* scratch) override {
    dnnl_.conv_backward_weight(s, f(x), f(dy), f(dweight), add_to, scratch);
  }

  // Scratch: kParts x {sums, second sums}, then three rows of coefficients.
  std::size_t prepare(const BatchNormDesc& s) override {
    return static_cast<std::size_t>((2 * kParts + 3) * padded(s.channels)) * 4;
  }
  void batch_norm_train(const BatchNormDesc& s, const void* x, const void* residual, const Master* gamma,
                        const Master* beta, Master* running_mean, Master* running_var, Master* mean, Master* rstd,
                        void* y, void* scratch) override {
    const I width = padded(s.channels);
    float* partial = f(scratch);
    float* scale = partial + 2 * kParts * width;
    float* offset = scale + width;
    // Sums are taken of x - shift with the first row as shift, which keeps squares small where the mean is large.
    const float* shift = f(x);
    row_parts(s.rows, [&](I part, I begin, I count) {
      loops_.shifted_sums(count, s.channels, s.channels, f(x) + begin * s.channels, shift, partial + 2 * part * width,
                          partial + (2 * part + 1) * width);
    });
    const double rows = static_cast<double>(s.rows);
    for (I c = 0; c < s.channels; ++c) {
      const auto [sum, squares] = add_parts(partial, width, c);
      const double m = sum / rows + static_cast<double>(shift[c]);
      const double total = std::max(0.0, squares - sum * sum / rows);  // of squared distances to the mean
      const double r = 1 / std::sqrt(total / rows + s.eps);
      f(mean)[c] = static_cast<float>(m);
      f(rstd)[c] = static_cast<float>(r);
      scale[c] = static_cast<float>(r * static_cast<double>(f(gamma)[c]));
      offset[c] = static_cast<float>(static_cast<double>(f(beta)[c]) - m * r * static_cast<double>(f(gamma)[c]));
      if (running_mean != nullptr) {
        float& rm = f(running_mean)[c];
        float& rv = f(running_var)[c];
        rm = static_cast<float>((1 - s.momentum) * static_cast<double>(rm) + s.momentum * m);
        const double unbiased = s.rows > 1 ? total / (rows - 1) : 0;  // one row says nothing about the spread
        rv = static_cast<float>((1 - s.momentum) * static_cast<double>(rv) + s.momentum * unbiased);
      }
    }
    scale_rows(s, x, residual, scale, offset, y);
  }
  void batch_norm_eval(const BatchNormDesc& s, const void* x, const void* residual, const Master* gamma,
                       const Master* beta, const Master* running_mean, const Master* running_var, void* y) override {
    if (coefficients_.size() < static_cast<std::size_t>(2 * s.channels)) {
      coefficients_.resize(static_cast<std::size_t>(2 * s.channels));
    }
    float* scale = coefficients_.data();
    float* offset = scale + s.channels;
    for (I c = 0; c < s.channels; ++c) {
      const double r = static_cast<double>(f(gamma)[c]) / std::sqrt(static_cast<double>(f(running_var)[c]) + s.eps);
      scale[c] = static_cast<float>(r);
      offset[c] = static_cast<float>(static_cast<double>(f(beta)[c]) - static_cast<double>(f(running_mean)[c]) * r);
    }
    scale_rows(s, x, residual, scale, offset, y);
  }
  void batch_norm_backward(const BatchNormDesc& s, const void* dy, const void* x, const void* y, const Master* gamma,
                           const Master* mean, const Master* rstd, void* dx, void* dresidual, bool accumulate_residual,
                           Master* dgamma, Master* dbeta, bool accumulate_parameters, void* scratch) override {
    const I width = padded(s.channels);
    float* partial = f(scratch);
    float* a = partial + 2 * kParts * width;
    float* b = a + width;
    float* k = b + width;
    row_parts(s.rows, [&](I part, I begin, I count) {
      const I at = begin * s.channels;
      loops_.norm_sums(count, s.channels, s.channels, f(dy) + at, f(x) + at, f(y) + at, s.relu, f(mean),
                       partial + 2 * part * width, partial + (2 * part + 1) * width);
    });
    const double rows = static_cast<double>(s.rows);
    for (I c = 0; c < s.channels; ++c) {
      const auto [sum, product] = add_parts(partial, width, c);
      const double m = static_cast<double>(f(mean)[c]), r = static_cast<double>(f(rstd)[c]);
      const double g = static_cast<double>(f(gamma)[c]);
      const double slope = -g * r * r * r * product / rows;  // of x
      a[c] = static_cast<float>(g * r);
      b[c] = static_cast<float>(slope);
      k[c] = static_cast<float>(-g * r * sum / rows - slope * m);
      if (dgamma != nullptr) put(f(dgamma)[c], product * r, accumulate_parameters);
      if (dbeta != nullptr) put(f(dbeta)[c], sum, accumulate_parameters);
    }
    if (dx == nullptr && dresidual == nullptr) return;
    const I piece = std::max<I>(1, kRange / s.channels);
    ranges(s.rows, piece, [&](I begin, I count) {
      const I at = begin * s.channels;
      loops_.norm_input(count, s.channels, f(dy) + at, f(x) + at, f(y) + at, s.relu, a, b, k,
                        dx == nullptr ? nullptr : f(dx) + at, dresidual == nullptr ? nullptr : f(dresidual) + at,
                        accumulate_residual);
    });
  }

  std::size_t prepare(const LayerNormDesc& s) override {
    return static_cast<std::size_t>(2 * kParts * padded(s.columns)) * 4;
  }
  void layer_norm(const LayerNormDesc& s, const void* x, const Master* gamma, const Master* beta, Master* mean,
                  Master* rstd, void* y) override {
    ranges(s.rows, rows_per_piece(s.columns), [&](I begin, I count) {
      for (I r = begin; r < begin + count; ++r) {
        loops_.layer_norm(s.columns, s.eps, f(x) + r * s.columns, f(gamma), f(beta), f(mean) + r, f(rstd) + r,
                          f(y) + r * s.columns);
      }
    });
  }
  void layer_norm_backward(const LayerNormDesc& s, const void* dy, const void* x, const Master* gamma,
                           const Master* mean, const Master* rstd, void* dx, bool accumulate_dx, Master* dgamma,
                           Master* dbeta, bool accumulate_parameters, void* scratch) override {
    const I width = padded(s.columns);
    float* partial = f(scratch);
    row_parts(s.rows, [&](I part, I begin, I count) {
      float* dg = partial + 2 * part * width;
      float* db = dg + width;
      std::memset(dg, 0, static_cast<std::size_t>(2 * width) * 4);
      for (I r = begin; r < begin + count; ++r) {
        const I at = r * s.columns;
        loops_.layer_norm_backward(s.columns, f(dy) + at, f(x) + at, f(gamma), f(mean)[r], f(rstd)[r],
                                   dx == nullptr ? nullptr : f(dx) + at, accumulate_dx, dg, db);
      }
    });
    if (dgamma != nullptr) loops_.column_sums(kParts, s.columns, 2 * width, partial, f(dgamma), accumulate_parameters);
    if (dbeta != nullptr) {
      loops_.column_sums(kParts, s.columns, 2 * width, partial + width, f(dbeta), accumulate_parameters);
    }
  }

  void gelu(I n, const void* x, void* y) override {
    ranges(n, kRange, [&](I at, I count) { loops_.gelu(count, f(x) + at, f(y) + at); });
  }
  void gelu_backward(I n, const void* dy, const void* x, void* dx, bool add_to) override {
    ranges(n, kRange, [&](I at, I count) { loops_.gelu_backward(count, f(dy) + at, f(x) + at, f(dx) + at, add_to); });
  }
  void silu(I n, const void* x, void* y) override {
    ranges(n, kRange, [&](I at, I count) { loops_.silu(count, f(x) + at, f(y) + at); });
  }
  void silu_backward(I n, const void* dy, const void* x, void* dx, bool add_to) override {
    ranges(n, kRange, [&](I at, I count) { loops_.silu_backward(count, f(dy) + at, f(x) + at, f(dx) + at, add_to); });
  }
  void relu(I n, const void* x, void* y) override {
    ranges(n, kRange, [&](I at, I count) { loops_.relu(count, f(x) + at, f(y) + at); });
  }
  void relu_backward(I n, const void* dy, const void* y, void* dx, bool add_to) override {
    ranges(n, kRange, [&](I at, I count) { loops_.relu_backward(count, f(dy) + at, f(y) + at, f(dx) + at, add_to); });
  }
  void add(I n, const void* a, const void* b, void* y) override {
    ranges(n, kRange, [&](I at, I count) { loops_.add(count, f(a) + at, f(b) + at, f(y) + at); });
  }
  void accumulate(I n, const void* x, void* y) override { add(n, y, x, y); }
  void dropout(I n, double p, const RandomKey& key, const void* x, void* y) override { mask(n, p, key, x, y, false); }
  void dropout_backward(I n, double p, const RandomKey& key, const void* dy, void* dx, bool add_to) override {
    mask(n, p, key, dy, dx, add_to);
  }

  void embedding(I n, I dim, const std::int32_t* ids, const void* weight, void* y) override {
    ranges(n, rows_per_piece(dim), [&](I begin, I count) {
      for (I i = begin; i < begin + count; ++i) {
        std::memcpy(f(y) + i * dim, f(weight) + ids[i] * dim, static_cast<std::size_t>(dim) * 4);
      }
    });
  }
  void embedding_backward(I n, I dim, I rows, const std::int32_t* ids, const void* dy, Master* dweight,
                          bool add_to) override {
    if (!add_to) zero(dweight, static_cast<std::size_t>(rows * dim) * 4);
    // Each piece owns some columns, so repeated ids add up in their order without locks.
    ranges(dim, n * dim > kRange ? 64 : dim + 1, [&](I at, I count) {
      for (I i = 0; i < n; ++i) {
        float* row = f(dweight) + ids[i] * dim + at;
        loops_.add(count, row, f(dy) + i * dim + at, row);
      }
    });
  }
  void add_broadcast(I batch, I inner, const void* x, const void* weight, void* y) override {
    ranges(batch * inner, inner, [&](I at, I count) { loops_.add(count, f(x) + at, f(weight), f(y) + at); });
  }

  // Scratch per thread: K and V transposed, then two blocks of kQueries rows of the attention matrix, then the rows'
  // gradient of the output (backward).
  std::size_t prepare(const AttentionDesc& s) override {
    return static_cast<std::size_t>(omp_get_max_threads()) * static_cast<std::size_t>(attention_floats(s)) * 4;
  }
  void attention(const AttentionDesc& s, const RandomKey& key, const void* qkv, void* y, Master* log_sum,
                 void* scratch) override {
    const I row = 3 * s.heads * s.head_dim, width = s.heads * s.head_dim;
    const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
#pragma omp parallel for schedule(static)
    for (I pair = 0; pair < s.batch * s.heads; ++pair) {
      const I b = pair / s.heads, h = pair % s.heads;
      float* keys = f(scratch) + omp_get_thread_num() * attention_floats(s);
      float* scores = keys + 2 * padded(s.tokens * s.head_dim);
      const float* q = f(qkv) + b * s.tokens * row + h * s.head_dim;
      const float* k = q + width;
      const float* v = k + width;
      loops_.transpose(s.tokens, s.head_dim, k, row, keys);
      for (I t0 = 0; t0 < s.tokens; t0 += kQueries) {
        const I count = std::min(kQueries, s.tokens - t0), seen = t0 + count;
        loops_.small_gemm(count, seen, s.head_dim, q + t0 * row, row, 1, keys, s.tokens, scores, s.tokens, false);
        for (I i = 0; i < count; ++i) {
          float* p = scores + i * s.tokens;
          const I t = t0 + i;
          f(log_sum)[pair * s.tokens + t] = loops_.softmax(t + 1, scale, p, p);
          std::fill(p + t + 1, p + seen, 0.0f);
          drop_row(s, key, pair, t, p, p);
        }
        loops_.small_gemm(count, s.head_dim, seen, scores, s.tokens, 1, v, row,
                          f(y) + (b * s.tokens + t0) * width + h * s.head_dim, width, false);
      }
    }
  }
  void attention_backward(const AttentionDesc& s, const RandomKey& key, const void* dy, const void* qkv, const void* y,
                          const Master* log_sum, void* dqkv, void* scratch) override {
    const I row = 3 * s.heads * s.head_dim, width = s.heads * s.head_dim;
    const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
#pragma omp parallel for schedule(static)
    for (I pair = 0; pair < s.batch * s.heads; ++pair) {
      const I b = pair / s.heads, h = pair % s.heads;
      float* keys = f(scratch) + omp_get_thread_num() * attention_floats(s);
      float* values = keys + padded(s.tokens * s.head_dim);
      float* p = values + padded(s.tokens * s.head_dim);
      float* ds = p + padded(kQueries * s.tokens);
      float* masked = ds + padded(kQueries * s.tokens);
      const I at = b * s.tokens * row + h * s.head_dim;
      const float* q = f(qkv) + at;
      const float* k = q + width;
      const float* v = k + width;
      float* dq = f(dqkv) + at;
      float* dk = dq + width;
      float* dv = dk + width;
      loops_.transpose(s.tokens, s.head_dim, k, row, keys);
      loops_.transpose(s.tokens, s.head_dim, v, row, values);
      // The last block comes first: it writes all rows of dk and dv, the others add to the rows that they see.
      const I blocks = (s.tokens + kQueries - 1) / kQueries;
      for (I block = blocks; block-- > 0;) {
        const I t0 = block * kQueries, count = std::min(kQueries, s.tokens - t0), seen = t0 + count;
        const bool add_to = block != blocks - 1;
        const float* g = f(dy) + (b * s.tokens + t0) * width + h * s.head_dim;
        const float* out = f(y) + (b * s.tokens + t0) * width + h * s.head_dim;
        loops_.small_gemm(count, seen, s.head_dim, q + t0 * row, row, 1, keys, s.tokens, p, s.tokens, false);
        loops_.small_gemm(count, seen, s.head_dim, g, width, 1, values, s.tokens, ds, s.tokens, false);
        const float* weights = s.dropout > 0 ? masked : p;
        for (I i = 0; i < count; ++i) {
          const I t = t0 + i;
          float* pi = p + i * s.tokens;
          float* di = ds + i * s.tokens;
          loops_.exp_scaled(t + 1, scale, f(log_sum)[pair * s.tokens + t], pi, pi);
          std::fill(pi + t + 1, pi + seen, 0.0f);
          drop_row(s, key, pair, t, pi, masked + i * s.tokens);
          drop_row(s, key, pair, t, di, di);
          if (s.dropout > 0) std::fill(masked + i * s.tokens + t + 1, masked + i * s.tokens + seen, 0.0f);
          const float dot = loops_.dot(s.head_dim, g + i * width, out + i * width);
          loops_.softmax_backward(t + 1, pi, di, dot, scale, di);
          std::fill(di + t + 1, di + seen, 0.0f);
        }
        loops_.small_gemm(seen, s.head_dim, count, weights, 1, s.tokens, g, width, dv, row, add_to);
        loops_.small_gemm(count, s.head_dim, seen, ds, s.tokens, 1, k, row, dq + t0 * row, row, false);
        loops_.small_gemm(seen, s.head_dim, count, ds, 1, s.tokens, q + t0 * row, row, dk, row, add_to);
      }
    }
  }

  void max_pool(const PoolDesc& s, const void* x, void* y, std::uint8_t* index) override {
#pragma omp parallel for schedule(static)
    for (I line = 0; line < s.n * s.oh(); ++line) {
      const I n = line / s.oh(), oy = line % s.oh();
      const float* taps[256];
      std::uint8_t where[256];
      for (I ox = 0; ox < s.ow(); ++ox) {
        I count = 0;
        for (I ky = 0; ky < s.kernel; ++ky) {
          const I iy = oy * s.stride + ky - s.padding;
          if (iy < 0 || iy >= s.h) continue;
          for (I kx = 0; kx < s.kernel; ++kx) {
            const I ix = ox * s.stride + kx - s.padding;
            if (ix < 0 || ix >= s.w) continue;
            taps[count] = f(x) + ((n * s.h + iy) * s.w + ix) * s.c;
            where[count++] = static_cast<std::uint8_t>(ky * s.kernel + kx);
          }
        }
        const I out = (line * s.ow() + ox) * s.c;
        loops_.max_pool(s.c, count, taps, where, f(y) + out, index + out);
      }
    }
  }
  void max_pool_backward(const PoolDesc& s, const void* dy, const std::uint8_t* index, void* dx, bool add_to) override {
    // One piece per image: windows overlap, images do not.
#pragma omp parallel for schedule(static)
    for (I n = 0; n < s.n; ++n) {
      float* image = f(dx) + n * s.h * s.w * s.c;
      if (!add_to) std::memset(image, 0, static_cast<std::size_t>(s.h * s.w * s.c) * 4);
      for (I oy = 0; oy < s.oh(); ++oy)
        for (I ox = 0; ox < s.ow(); ++ox) {
          const I out = ((n * s.oh() + oy) * s.ow() + ox) * s.c;
          for (I c = 0; c < s.c; ++c) {
            const I tap = index[out + c];
            const I iy = oy * s.stride + tap / s.kernel - s.padding, ix = ox * s.stride + tap % s.kernel - s.padding;
            image[(iy * s.w + ix) * s.c + c] += f(dy)[out + c];
          }
        }
    }
  }
  void mean_pool(I n, I positions, I channels, const void* x, void* y) override {
    const float scale = static_cast<float>(1.0 / static_cast<double>(positions));
    ranges(n, 1, [&](I begin, I count) {
      for (I i = begin; i < begin + count; ++i) {
        float* out = f(y) + i * channels;
        loops_.column_sums(positions, channels, channels, f(x) + i * positions * channels, out, false);
        for (I c = 0; c < channels; ++c) out[c] *= scale;
      }
    });
  }
  void mean_pool_backward(I n, I positions, I channels, const void* dy, void* dx, bool add_to) override {
    const float scale = static_cast<float>(1.0 / static_cast<double>(positions));
    ranges(n * positions, rows_per_piece(channels), [&](I begin, I count) {
      for (I i = begin; i < begin + count; ++i) {
        const float* in = f(dy) + i / positions * channels;
        float* out = f(dx) + i * channels;
        if (add_to) {
          for (I c = 0; c < channels; ++c) out[c] += in[c] * scale;
        } else {
          for (I c = 0; c < channels; ++c) out[c] = in[c] * scale;
        }
      }
    });
  }

  std::size_t prepare(const CrossEntropyDesc& s) override { return static_cast<std::size_t>(s.rows) * 8; }
  void cross_entropy(const CrossEntropyDesc& s, const void* logits, const std::int32_t* targets, double* loss,
                     Master* log_sum, void* scratch) override {
    double* losses = static_cast<double*>(scratch);
    const double smoothing = s.label_smoothing, share = smoothing / static_cast<double>(s.classes);
    ranges(s.rows, rows_per_piece(s.classes), [&](I begin, I count) {
      for (I r = begin; r < begin + count; ++r) {
        const float* row = f(logits) + r * s.classes;
        double sum = 0;
        const float lse = loops_.log_sum_exp(s.classes, row, &sum);
        f(log_sum)[r] = lse;
        losses[r] = 0;
        if (targets[r] == s.ignore_index) continue;
        const double log = static_cast<double>(lse);
        losses[r] = (1 - smoothing) * (log - static_cast<double>(row[targets[r]]));
        if (smoothing > 0) losses[r] += share * (static_cast<double>(s.classes) * log - sum);
      }
    });
    double total = 0;
    for (I r = 0; r < s.rows; ++r) total += losses[r];
    *loss = total / static_cast<double>(kept_targets(s, targets));
  }
  void cross_entropy_backward(const CrossEntropyDesc& s, const void* logits, const std::int32_t* targets,
                              const Master* log_sum, double loss_scale, void* dlogits) override {
    const float scale = static_cast<float>(loss_scale / static_cast<double>(kept_targets(s, targets)));
    const float share = static_cast<float>(s.label_smoothing / static_cast<double>(s.classes));
    const float hit = static_cast<float>(1 - s.label_smoothing) * scale;
    ranges(s.rows, rows_per_piece(s.classes), [&](I begin, I count) {
      for (I r = begin; r < begin + count; ++r) {
        float* out = f(dlogits) + r * s.classes;
        if (targets[r] == s.ignore_index) {
          std::fill_n(out, s.classes, 0.0f);
          continue;
        }
        loops_.cross_entropy_backward(s.classes, f(logits) + r * s.classes, f(log_sum)[r], share, scale, out);
        out[targets[r]] -= hit;
      }
    });
  }
  void mse(I n, const void* prediction, const void* target, double* loss) override {
    *loss = loops_.squared_difference(n, f(prediction), f(target)) / static_cast<double>(n);
  }
  void mse_backward(I n, const void* prediction, const void* target, double loss_scale, void* dprediction) override {
    const float scale = static_cast<float>(2 * loss_scale / static_cast<double>(n));
    for (I i = 0; i < n; ++i) f(dprediction)[i] = (f(prediction)[i] - f(target)[i]) * scale;
  }

  void sgd(std::span<const UpdateChunk> chunks, const SgdUpdate& u) override {
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const UpdateChunk& c = chunks[i];
      loops_.sgd(c.count, f(c.parameter), f(c.gradient), f(c.state1), static_cast<float>(u.lr),
                 static_cast<float>(u.momentum), static_cast<float>(u.dampening), u.nesterov, u.first,
                 static_cast<float>(c.decay), static_cast<float>(u.unscale), static_cast<float>(u.clip));
    }
  }
  void adamw(std::span<const UpdateChunk> chunks, const AdamwUpdate& u) override {
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const UpdateChunk& c = chunks[i];
      loops_.adamw(c.count, f(c.parameter), f(c.gradient), f(c.state1), f(c.state2),
                   static_cast<float>(u.decoupled ? 1 - u.lr * c.decay : 1),
                   static_cast<float>(u.decoupled ? 0 : c.decay), static_cast<float>(u.beta1),
                   static_cast<float>(u.beta2), static_cast<float>(u.lr / u.correction1),
                   static_cast<float>(std::sqrt(u.correction2)), static_cast<float>(u.eps),
                   static_cast<float>(u.unscale), static_cast<float>(u.clip));
    }
  }
  GradientNorm gradient_norm(std::span<const UpdateChunk> chunks, double unscale) override {
    if (norms_.size() < chunks.size()) norms_.resize(chunks.size());
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      norms_[i].squared = loops_.squared_norm(chunks[i].count, f(chunks[i].gradient), static_cast<float>(unscale),
                                              &norms_[i].found_inf);
    }
    GradientNorm total;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      total.squared += norms_[i].squared;
      total.found_inf = total.found_inf || norms_[i].found_inf;
    }
    return total;
  }

 private:
  static I attention_floats(const AttentionDesc& s) {
    return 2 * padded(s.tokens * s.head_dim) + 3 * padded(kQueries * s.tokens);
  }
  static I rows_per_piece(I columns) { return std::max<I>(1, kRange / std::max<I>(columns, 1)); }
  static void put(float& out, double value, bool add_to) {
    out = static_cast<float>(add_to ? static_cast<double>(out) + value : value);
  }
  static I kept_targets(const CrossEntropyDesc& s, const std::int32_t* targets) {
    return s.rows - std::count(targets, targets + s.rows, s.ignore_index);
  }

  // Column c of both sums that the parts of a batch norm left, part after part.
  static std::pair<double, double> add_parts(const float* partial, I width, I c) {
    double first = 0, second = 0;
    for (I p = 0; p < kParts; ++p) {
      first += static_cast<double>(partial[2 * p * width + c]);
      second += static_cast<double>(partial[(2 * p + 1) * width + c]);
    }
    return {first, second};
  }

  // run(part, first row, rows) for all kParts parts, also empty ones.
  template <typename Run>
  static void row_parts(I rows, const Run& run) {
#pragma omp parallel for schedule(static)
    for (I p = 0; p < kParts; ++p) {
      const I begin = rows * p / kParts, end = rows * (p + 1) / kParts;
      run(p, begin, end - begin);
    }
  }

  void scale_rows(const BatchNormDesc& s, const void* x, const void* residual, const float* scale, const float* offset,
                  void* y) {
    ranges(s.rows, rows_per_piece(s.channels), [&](I begin, I count) {
      const I at = begin * s.channels;
      loops_.scale_rows(count, s.channels, f(x) + at, scale, offset, s.residual ? f(residual) + at : nullptr, s.relu,
                        f(y) + at);
    });
  }

  void mask(I n, double p, const RandomKey& key, const void* x, void* y, bool add_to) {
    ranges(n, kRange, [&](I at, I count) {
      loops_.dropout(at, count, p, key.seed, static_cast<std::uint32_t>(key.step), key.stream, key.op, f(x) + at,
                     f(y) + at, add_to);
    });
  }

  // Dropout of the first t + 1 entries of row t of an attention matrix; element numbers count whole matrices.
  void drop_row(const AttentionDesc& s, const RandomKey& key, I pair, I t, const float* in, float* out) const {
    if (s.dropout == 0) return;
    const I first = (pair * s.tokens + t) * s.tokens;
    const I lead = first % 4;  // the row may begin inside a block of four
    if (lead != 0) {
      float head[4] = {}, kept[4];
      const I count = std::min(4 - lead, t + 1);
      std::copy_n(in, count, head + lead);
      loops_.dropout(first - lead, 4, s.dropout, key.seed, static_cast<std::uint32_t>(key.step), key.stream, key.op,
                     head, kept, false);
      std::copy_n(kept + lead, count, out);
      if (count == t + 1) return;
      loops_.dropout(first + count, t + 1 - count, s.dropout, key.seed, static_cast<std::uint32_t>(key.step),
                     key.stream, key.op, in + count, out + count, false);
      return;
    }
    loops_.dropout(first, t + 1, s.dropout, key.seed, static_cast<std::uint32_t>(key.step), key.stream, key.op, in, out,
                   false);
  }

  const Loops& loops_;
  Dnnl dnnl_;
  std::vector<float> coefficients_;  // batch_norm_eval
  std::vector<GradientNorm> norms_;  // one per chunk
};

}  // namespace

Result<std::unique_ptr<Kernels>> make_cpu_kernels(DType precision, const char* instruction_set) {
  std::unique_ptr<Kernels> kernels = std::make_unique<CpuKernels>(instruction_set);
  if (precision == DType::f32) return kernels;
  if (precision == DType::bf16 || precision == DType::f16) return make_low_precision(std::move(kernels), precision);
  return Error(Errc::invalid_argument,
               std::string("the cpu backend computes in f32, bf16 or f16, not ") + name_of(precision));
}

}  // namespace ddprun::engine
