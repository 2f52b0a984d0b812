#pragma once

#include <cstdint>

namespace ddprun::engine {

// Inner loops on f32 ranges, single-threaded and without state. cpu_loops.cc is compiled once per instruction set
// (plain x86-64, AVX2, AVX-512), each copy fills one table, and the program picks a table when it starts. Rows are
// contiguous unless a stride is given; `add` adds to the output.
struct Loops {
  const char* name;

  void (*gelu)(std::int64_t n, const float* x, float* y);
  void (*gelu_backward)(std::int64_t n, const float* dy, const float* x, float* dx, bool add);
  void (*silu)(std::int64_t n, const float* x, float* y);
  void (*silu_backward)(std::int64_t n, const float* dy, const float* x, float* dx, bool add);
  void (*relu)(std::int64_t n, const float* x, float* y);
  void (*relu_backward)(std::int64_t n, const float* dy, const float* y, float* dx, bool add);
  void (*add)(std::int64_t n, const float* a, const float* b, float* y);
  // Elements first .. first+n-1 of a tensor under one Philox key; first is a multiple of 4.
  void (*dropout)(std::int64_t first, std::int64_t n, double p, std::uint64_t seed, std::uint32_t step,
                  std::uint32_t stream, std::uint32_t op, const float* x, float* y, bool add);

  // out[c] (+)= sum over rows of x[r * stride + c], c < columns.
  void (*column_sums)(std::int64_t rows, std::int64_t columns, std::int64_t stride, const float* x, float* out,
                      bool add);
  // sum[c] = sum of (x - shift[c]), squares[c] = sum of (x - shift[c])^2 over rows.
  void (*shifted_sums)(std::int64_t rows, std::int64_t columns, std::int64_t stride, const float* x, const float* shift,
                       float* sum, float* squares);
  // y = relu?(x * scale[c] + offset[c] + residual?)
  void (*scale_rows)(std::int64_t rows, std::int64_t columns, const float* x, const float* scale, const float* offset,
                     const float* residual, bool relu, float* y);
  // g = dy where y > 0 (relu) or dy; sum[c] = sum g, product[c] = sum g * (x - mean[c]) over rows.
  void (*norm_sums)(std::int64_t rows, std::int64_t columns, std::int64_t stride, const float* dy, const float* x,
                    const float* y, bool relu, const float* mean, float* sum, float* product);
  // dx = a[c] * g + b[c] * x + k[c]; dresidual (+)= g. dx and dresidual may be null.
  void (*norm_input)(std::int64_t rows, std::int64_t columns, const float* dy, const float* x, const float* y,
                     bool relu, const float* a, const float* b, const float* k, float* dx, float* dresidual,
                     bool add_residual);

  void (*layer_norm)(std::int64_t columns, double eps, const float* x, const float* gamma, const float* beta,
                     float* mean, float* rstd, float* y);
  // One row; adds to dgamma and dbeta. dx may be null or dy.
  void (*layer_norm_backward)(std::int64_t columns, const float* dy, const float* x, const float* gamma, float mean,
                              float rstd, float* dx, bool add, float* dgamma, float* dbeta);

  // c[m, n] (+)= sum over k of a[i * a_row + k * a_column] * b[k * ldb + j].
  void (*small_gemm)(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row,
                     std::int64_t a_column, const float* b, std::int64_t ldb, float* c, std::int64_t ldc, bool add);
  // out[c * rows + r] = x[r * stride + c].
  void (*transpose)(std::int64_t rows, std::int64_t columns, const float* x, std::int64_t stride, float* out);
  // p = exp(scale * s - m) / sum over the first n; returns the log of the sum of exponentials.
  float (*softmax)(std::int64_t n, float scale, const float* s, float* p);
  void (*exp_scaled)(std::int64_t n, float scale, float minus, const float* s, float* p);  // p = exp(scale * s - minus)
  float (*dot)(std::int64_t n, const float* a, const float* b);
  // ds = p * (dp - d) * scale
  void (*softmax_backward)(std::int64_t n, const float* p, const float* dp, float d, float scale, float* ds);

  // log of the sum of exponentials of a row; *sum = sum of the row.
  float (*log_sum_exp)(std::int64_t n, const float* x, double* sum);
  // y = (exp(x - log_sum) - smoothing) * scale
  void (*cross_entropy_backward)(std::int64_t n, const float* x, float log_sum, float smoothing, float scale, float* y);
  double (*squared_difference)(std::int64_t n, const float* a, const float* b);

  void (*max_pool)(std::int64_t channels, std::int64_t taps, const float* const* x, const std::uint8_t* tap, float* y,
                   std::uint8_t* index);

  void (*sgd)(std::int64_t n, float* p, const float* g, float* buffer, float lr, float momentum, float dampening,
              bool nesterov, bool first, float decay, float unscale, float clip);
  void (*adamw)(std::int64_t n, float* p, const float* g, float* m, float* v, float keep, float l2, float beta1,
                float beta2, float step_size, float root2, float eps, float unscale, float clip);
  double (*squared_norm)(std::int64_t n, const float* g, float unscale, bool* not_finite);
};

const Loops& loops_plain();
const Loops& loops_avx2();
const Loops& loops_avx512();
// The best table for this processor. limit: null or "avx512", "avx2", "plain": nothing better than that (tests).
const Loops& choose_loops(const char* limit);

}  // namespace ddprun::engine
