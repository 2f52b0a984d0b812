// Compiled once per instruction set with DDPRUN_LOOPS naming the table function and DDPRUN_VECTOR the bytes of a
// vector. Everything here is static and no standard header with inline functions is included: a shared inline function
// compiled for AVX-512 could otherwise be linked into the plain path. Without -ffast-math: inf and nan pass through as
// they are, and sums are split over a fixed number of lanes.
#include "worker/kernels/cpu_loops.h"

namespace ddprun::engine {
namespace {

using I = std::int64_t;
using U = std::uint32_t;

// e^x within 2 ulp; 0 below -87.3, inf above 88.7, nan for nan.
inline float exp_f32(float x) {
  const float limited = x < -87.33654f ? -87.33654f : (x > 88.72283f ? 88.72283f : x);
  const float n = __builtin_floorf(limited * 1.44269504f + 0.5f);
  float r = limited - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, since n may be 128.
  const int whole = static_cast<int>(n), half = whole >> 1;
  const float a = __builtin_bit_cast(float, (half + 127) << 23);
  const float b = __builtin_bit_cast(float, (whole - half + 127) << 23);
  const float value = p * a * b;
  return x < -87.33654f ? 0.0f : (x > 88.72283f ? __builtin_inff() : value);
}

// Half of 1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)).
inline float gelu_gate(float x) {
  const float u = 1.5957691216f * (x + 0.044715f * x * x * x);
  return 1.0f / (1.0f + exp_f32(-u));
}

void gelu(I n, const float* x, float* y) {
#pragma omp simd
  for (I i = 0; i < n; ++i) y[i] = x[i] * gelu_gate(x[i]);
}

void gelu_backward(I n, const float* dy, const float* x, float* dx, bool add) {
  const float keep = add ? 1.0f : 0.0f;
  if (add) {
#pragma omp simd
    for (I i = 0; i < n; ++i) {
      const float s = gelu_gate(x[i]);
      const float slope = s + x[i] * s * (1.0f - s) * 1.5957691216f * (1.0f + 0.134145f * x[i] * x[i]);
      dx[i] = keep * dx[i] + dy[i] * slope;
    }
    return;
  }
#pragma omp simd
  for (I i = 0; i < n; ++i) {
    const float s = gelu_gate(x[i]);
    dx[i] = dy[i] * (s + x[i] * s * (1.0f - s) * 1.5957691216f * (1.0f + 0.134145f * x[i] * x[i]));
  }
}

inline float silu_gate(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

void silu(I n, const float* x, float* y) {
#pragma omp simd
  for (I i = 0; i < n; ++i) y[i] = x[i] * silu_gate(x[i]);
}

inline float silu_slope(float x) {
  const float gate = silu_gate(x);
  return gate * (1.0f + x * (1.0f - gate));
}

void silu_backward(I n, const float* dy, const float* x, float* dx, bool add) {
  if (add) {
#pragma omp simd
    for (I i = 0; i < n; ++i) dx[i] += dy[i] * silu_slope(x[i]);
    return;
  }
#pragma omp simd
  for (I i = 0; i < n; ++i) dx[i] = dy[i] * silu_slope(x[i]);
}

void relu(I n, const float* x, float* y) {
#pragma omp simd
  for (I i = 0; i < n; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

void relu_backward(I n, const float* dy, const float* y, float* dx, bool add) {
  if (add) {
#pragma omp simd
    for (I i = 0; i < n; ++i) dx[i] += y[i] > 0.0f ? dy[i] : 0.0f;
    return;
  }
#pragma omp simd
  for (I i = 0; i < n; ++i) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

void add(I n, const float* a, const float* b, float* y) {
#pragma omp simd
  for (I i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void dropout(I first, I n, double p, std::uint64_t seed, U step, U stream, U op, const float* x, float* y,
             bool add_to) {
  const std::uint64_t limit = static_cast<std::uint64_t>((1.0 - p) * 4294967296.0);
  const float scale = static_cast<float>(1.0 / (1.0 - p));
  for (I i = 0; i < n; i += 4) {
    const std::uint64_t block = static_cast<std::uint64_t>(first + i) / 4;
    U c[4] = {static_cast<U>(block), static_cast<U>(block >> 32) | (op << 8), stream, step};
    U k0 = static_cast<U>(seed), k1 = static_cast<U>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0], b = std::uint64_t{0xCD9E8D57} * c[2];
      const U next0 = static_cast<U>(b >> 32) ^ c[1] ^ k0, next2 = static_cast<U>(a >> 32) ^ c[3] ^ k1;
      c[0] = next0;
      c[1] = static_cast<U>(b);
      c[2] = next2;
      c[3] = static_cast<U>(a);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const I count = n - i < 4 ? n - i : 4;
    for (I j = 0; j < count; ++j) {
      const float value = c[j] < limit ? x[i + j] * scale : 0.0f;
      y[i + j] = add_to ? y[i + j] + value : value;
    }
  }
}

constexpr I kBlock = 32;  // columns whose sums stay in registers

// Calls run(begin, width) for blocks of columns; width is kBlock (as a constant after inlining) or the rest.
template <typename Run>
[[gnu::always_inline]] inline void column_blocks(I columns, Run run) {
  I begin = 0;
  for (; begin + kBlock <= columns; begin += kBlock) run(begin, kBlock);
  if (begin < columns) run(begin, columns - begin);
}

void column_sums(I rows, I columns, I stride, const float* x, float* out, bool add_to) {
  column_blocks(
      columns, [&](I begin, I width) __attribute__((always_inline)) {
        float total[kBlock] = {};
        for (I from = 0; from < rows; from += 256) {  // two levels keep the rounding error of long sums small
          const I to = from + 256 < rows ? from + 256 : rows;
          float sum[kBlock] = {};
          for (I r = from; r < to; ++r) {
            const float* row = x + r * stride + begin;
            for (I c = 0; c < width; ++c) sum[c] += row[c];
          }
          for (I c = 0; c < width; ++c) total[c] += sum[c];
        }
        for (I c = 0; c < width; ++c) out[begin + c] = add_to ? out[begin + c] + total[c] : total[c];
      });
}

void shifted_sums(I rows, I columns, I stride, const float* x, const float* shift, float* sum, float* squares) {
  column_blocks(
      columns, [&](I begin, I width) __attribute__((always_inline)) {
        float s[kBlock] = {}, q[kBlock] = {};
        for (I r = 0; r < rows; ++r) {
          const float* row = x + r * stride + begin;
          for (I c = 0; c < width; ++c) {
            const float d = row[c] - shift[begin + c];
            s[c] += d;
            q[c] += d * d;
          }
        }
        for (I c = 0; c < width; ++c) {
          sum[begin + c] = s[c];
          squares[begin + c] = q[c];
        }
      });
}

void scale_rows(I rows, I columns, const float* x, const float* scale, const float* offset, const float* residual,
                bool relu_after, float* y) {
  for (I r = 0; r < rows; ++r) {
    const float* in = x + r * columns;
    float* out = y + r * columns;
    if (residual != nullptr) {
      const float* other = residual + r * columns;
      if (relu_after) {
#pragma omp simd
        for (I c = 0; c < columns; ++c) {
          const float v = in[c] * scale[c] + offset[c] + other[c];
          out[c] = v < 0.0f ? 0.0f : v;
        }
      } else {
#pragma omp simd
        for (I c = 0; c < columns; ++c) out[c] = in[c] * scale[c] + offset[c] + other[c];
      }
    } else if (relu_after) {
#pragma omp simd
      for (I c = 0; c < columns; ++c) {
        const float v = in[c] * scale[c] + offset[c];
        out[c] = v < 0.0f ? 0.0f : v;
      }
    } else {
#pragma omp simd
      for (I c = 0; c < columns; ++c) out[c] = in[c] * scale[c] + offset[c];
    }
  }
}

void norm_sums(I rows, I columns, I stride, const float* dy, const float* x, const float* y, bool relu_after,
               const float* mean, float* sum, float* product) {
  column_blocks(
      columns, [&](I begin, I width) __attribute__((always_inline)) {
        float s[kBlock] = {}, p[kBlock] = {};
        for (I r = 0; r < rows; ++r) {
          const I at = r * stride + begin;
          if (relu_after) {
            for (I c = 0; c < width; ++c) {
              const float g = y[at + c] > 0.0f ? dy[at + c] : 0.0f;
              s[c] += g;
              p[c] += g * (x[at + c] - mean[begin + c]);
            }
          } else {
            for (I c = 0; c < width; ++c) {
              const float g = dy[at + c];
              s[c] += g;
              p[c] += g * (x[at + c] - mean[begin + c]);
            }
          }
        }
        for (I c = 0; c < width; ++c) {
          sum[begin + c] = s[c];
          product[begin + c] = p[c];
        }
      });
}

void norm_input(I rows, I columns, const float* dy, const float* x, const float* y, bool relu_after, const float* a,
                const float* b, const float* k, float* dx, float* dresidual, bool add_residual) {
  for (I r = 0; r < rows; ++r) {
    const I at = r * columns;
    // dx may lie over x and dresidual over dy: each element is read before it is written.
    if (dresidual != nullptr) {
      const float keep = add_residual ? 1.0f : 0.0f;
#pragma omp simd
      for (I c = 0; c < columns; ++c) {
        const float g = !relu_after || y[at + c] > 0.0f ? dy[at + c] : 0.0f;
        const float input = a[c] * g + b[c] * x[at + c] + k[c];
        if (dx != nullptr) dx[at + c] = input;
        dresidual[at + c] = add_residual ? keep * dresidual[at + c] + g : g;
      }
    } else if (dx != nullptr) {
      if (relu_after) {
#pragma omp simd
        for (I c = 0; c < columns; ++c) {
          const float g = y[at + c] > 0.0f ? dy[at + c] : 0.0f;
          dx[at + c] = a[c] * g + b[c] * x[at + c] + k[c];
        }
      } else {
#pragma omp simd
        for (I c = 0; c < columns; ++c) dx[at + c] = a[c] * dy[at + c] + b[c] * x[at + c] + k[c];
      }
    }
  }
}

void layer_norm(I n, double eps, const float* x, const float* gamma, const float* beta, float* mean, float* rstd,
                float* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (I c = 0; c < n; ++c) sum += x[c];
  const float m = sum / static_cast<float>(n);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (I c = 0; c < n; ++c) squares += (x[c] - m) * (x[c] - m);
  const float s = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(squares) / static_cast<double>(n) + eps));
  *mean = m;
  *rstd = s;
#pragma omp simd
  for (I c = 0; c < n; ++c) y[c] = (x[c] - m) * s * gamma[c] + beta[c];
}

void layer_norm_backward(I n, const float* dy, const float* x, const float* gamma, float mean, float rstd, float* dx,
                         bool add_to, float* dgamma, float* dbeta) {
  float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (I c = 0; c < n; ++c) {
    const float g = dy[c] * gamma[c];
    sum += g;
    product += g * (x[c] - mean);
  }
  const float mean_g = sum / static_cast<float>(n);
  const float slope = product * rstd * rstd / static_cast<float>(n);
#pragma omp simd
  for (I c = 0; c < n; ++c) {
    dgamma[c] += dy[c] * (x[c] - mean) * rstd;
    dbeta[c] += dy[c];
  }
  if (dx == nullptr) return;
  if (add_to) {
#pragma omp simd
    for (I c = 0; c < n; ++c) dx[c] += rstd * (dy[c] * gamma[c] - mean_g - (x[c] - mean) * slope);
  } else {
#pragma omp simd
    for (I c = 0; c < n; ++c) dx[c] = rstd * (dy[c] * gamma[c] - mean_g - (x[c] - mean) * slope);
  }
}

typedef float Vector __attribute__((vector_size(DDPRUN_VECTOR), aligned(4), may_alias));
constexpr I kLanes = DDPRUN_VECTOR / 4;
constexpr I kRows = 6;

// kM rows x 2 vectors of c, kept in registers.
template <int kM>
[[gnu::always_inline]] inline void tile(I k, const float* a, I a_row, I a_column, const float* b, I ldb, float* c,
                                        I ldc, bool add_to) {
  Vector sum[kM][2] = {};
  for (I p = 0; p < k; ++p) {
    const Vector b0 = *reinterpret_cast<const Vector*>(b + p * ldb);
    const Vector b1 = *reinterpret_cast<const Vector*>(b + p * ldb + kLanes);
    for (int i = 0; i < kM; ++i) {
      const float x = a[i * a_row + p * a_column];
      sum[i][0] += x * b0;
      sum[i][1] += x * b1;
    }
  }
  for (int i = 0; i < kM; ++i) {
    Vector* c0 = reinterpret_cast<Vector*>(c + i * ldc);
    Vector* c1 = reinterpret_cast<Vector*>(c + i * ldc + kLanes);
    *c0 = add_to ? *c0 + sum[i][0] : sum[i][0];
    *c1 = add_to ? *c1 + sum[i][1] : sum[i][1];
  }
}

void small_gemm(I m, I n, I k, const float* a, I a_row, I a_column, const float* b, I ldb, float* c, I ldc,
                bool add_to) {
  I j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    I i = 0;
    for (; i + kRows <= m; i += kRows) {
      tile<kRows>(k, a + i * a_row, a_row, a_column, b + j, ldb, c + i * ldc + j, ldc, add_to);
    }
    for (; i < m; ++i) tile<1>(k, a + i * a_row, a_row, a_column, b + j, ldb, c + i * ldc + j, ldc, add_to);
  }
  if (j == n) return;
  for (I i = 0; i < m; ++i) {
    float sum[2 * kLanes] = {};
    for (I p = 0; p < k; ++p) {
      const float x = a[i * a_row + p * a_column];
      for (I l = 0; l < n - j; ++l) sum[l] += x * b[p * ldb + j + l];
    }
    for (I l = 0; l < n - j; ++l) c[i * ldc + j + l] = add_to ? c[i * ldc + j + l] + sum[l] : sum[l];
  }
}

void transpose(I rows, I columns, const float* x, I stride, float* out) {
  for (I r0 = 0; r0 < rows; r0 += 16) {
    const I r1 = r0 + 16 < rows ? r0 + 16 : rows;
    for (I c = 0; c < columns; ++c) {
      for (I r = r0; r < r1; ++r) out[c * rows + r] = x[r * stride + c];
    }
  }
}

inline float largest(I n, const float* x) {
  float top = x[0];
#pragma omp simd reduction(max : top)
  for (I i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

float softmax(I n, float scale, const float* s, float* p) {
  const float top = largest(n, s) * scale;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (I i = 0; i < n; ++i) {
    const float e = exp_f32(s[i] * scale - top);
    p[i] = e;
    sum += e;
  }
  const float inverse = 1.0f / sum;
#pragma omp simd
  for (I i = 0; i < n; ++i) p[i] *= inverse;
  return top + __builtin_logf(sum);
}

void exp_scaled(I n, float scale, float minus, const float* s, float* p) {
#pragma omp simd
  for (I i = 0; i < n; ++i) p[i] = exp_f32(s[i] * scale - minus);
}

float dot(I n, const float* a, const float* b) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (I i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void softmax_backward(I n, const float* p, const float* dp, float d, float scale, float* ds) {
#pragma omp simd
  for (I i = 0; i < n; ++i) ds[i] = p[i] * (dp[i] - d) * scale;
}

float log_sum_exp(I n, const float* x, double* sum_out) {
  const float top = largest(n, x);
  float sum = 0, all = 0;
#pragma omp simd reduction(+ : sum, all)
  for (I i = 0; i < n; ++i) {
    sum += exp_f32(x[i] - top);
    all += x[i];
  }
  *sum_out = static_cast<double>(all);
  return top + __builtin_logf(sum);
}

void cross_entropy_backward(I n, const float* x, float log_sum, float smoothing, float scale, float* y) {
#pragma omp simd
  for (I i = 0; i < n; ++i) y[i] = (exp_f32(x[i] - log_sum) - smoothing) * scale;
}

double squared_difference(I n, const float* a, const float* b) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (I i = 0; i < n; ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return sum;
}

void max_pool(I channels, I taps, const float* const* x, const std::uint8_t* tap, float* y, std::uint8_t* index) {
  for (I c = 0; c < channels; ++c) {
    y[c] = x[0][c];
    index[c] = tap[0];
  }
  for (I t = 1; t < taps; ++t) {
    const float* in = x[t];
    const std::uint8_t where = tap[t];
    for (I c = 0; c < channels; ++c) {
      const bool more = in[c] > y[c] || in[c] != in[c];  // nan wins, as in torch
      y[c] = more ? in[c] : y[c];
      index[c] = more ? where : index[c];
    }
  }
}

void sgd(I n, float* p, const float* g, float* buffer, float lr, float momentum, float dampening, bool nesterov,
         bool first, float decay, float unscale, float clip) {
  if (buffer == nullptr) {
#pragma omp simd
    for (I i = 0; i < n; ++i) p[i] -= lr * (g[i] * unscale * clip + decay * p[i]);
    return;
  }
  const float keep = first ? 0.0f : momentum;
  const float take = first ? 1.0f : 1.0f - dampening;
#pragma omp simd
  for (I i = 0; i < n; ++i) {
    const float gradient = g[i] * unscale * clip + decay * p[i];
    const float b = keep * buffer[i] + take * gradient;
    buffer[i] = b;
    p[i] -= lr * (nesterov ? gradient + momentum * b : b);
  }
}

void adamw(I n, float* p, const float* g, float* m, float* v, float keep, float l2, float beta1, float beta2,
           float step_size, float root2, float eps, float unscale, float clip) {
  const float take1 = 1.0f - beta1, take2 = 1.0f - beta2;
#pragma omp simd
  for (I i = 0; i < n; ++i) {
    const float gradient = g[i] * unscale * clip + l2 * p[i];
    const float m1 = m[i] + (gradient - m[i]) * take1;
    const float v1 = beta2 * v[i] + take2 * gradient * gradient;
    m[i] = m1;
    v[i] = v1;
    p[i] = p[i] * keep - step_size * m1 / (__builtin_sqrtf(v1) / root2 + eps);
  }
}

double squared_norm(I n, const float* g, float unscale, bool* not_finite) {
  double sum = 0;
  U bad = 0;
#pragma omp simd reduction(+ : sum) reduction(| : bad)
  for (I i = 0; i < n; ++i) {
    const float x = g[i] * unscale;
    bad |= (__builtin_bit_cast(U, x) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    sum += static_cast<double>(x) * static_cast<double>(x);
  }
  *not_finite = bad != 0;
  return sum;
}

constexpr Loops kLoops = {DDPRUN_LOOPS_NAME,
                          gelu,
                          gelu_backward,
                          silu,
                          silu_backward,
                          relu,
                          relu_backward,
                          add,
                          dropout,
                          column_sums,
                          shifted_sums,
                          scale_rows,
                          norm_sums,
                          norm_input,
                          layer_norm,
                          layer_norm_backward,
                          small_gemm,
                          transpose,
                          softmax,
                          exp_scaled,
                          dot,
                          softmax_backward,
                          log_sum_exp,
                          cross_entropy_backward,
                          squared_difference,
                          max_pool,
                          sgd,
                          adamw,
                          squared_norm};

}  // namespace

const Loops& DDPRUN_LOOPS() { return kLoops; }

}  // namespace ddprun::engine
