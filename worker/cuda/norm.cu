#include "worker/cuda/device_types.cuh"

namespace ddprun::engine::gpu {
namespace {

constexpr int kColumns = 32;  // columns of a block
constexpr int kRows = 8;      // rows that a block reads at once

int slices_for(std::int64_t rows) {
  const std::int64_t slices = (rows + 255) / 256;
  return static_cast<int>(slices < 1 ? 1 : slices > kMaxSlices ? kMaxSlices : slices);
}

// What is summed per element: up to two sums.
template <typename T>
struct Plain {
  const T* x;
  __device__ float2 operator()(std::int64_t i, std::int64_t) const { return {to_float(x[i]), 0.0f}; }
};

template <typename T>
struct SquaredDeviation {
  const T* x;
  const float* mean;
  __device__ float2 operator()(std::int64_t i, std::int64_t column) const {
    const float d = to_float(x[i]) - mean[column];
    return {d * d, 0.0f};
  }
};

template <typename T>
struct BatchNormSums {  // {dy', dy' * xhat}, dy' behind the relu mask
  const T *dy, *x, *y;
  const float *mean, *rstd;
  bool relu;
  __device__ float2 operator()(std::int64_t i, std::int64_t column) const {
    const float g = relu && !(to_float(y[i]) > 0) ? 0.0f : to_float(dy[i]);
    return {g, g * (to_float(x[i]) - mean[column]) * rstd[column]};
  }
};

template <typename T>
struct LayerNormSums {  // {dy, dy * xhat}, statistics per row
  const T *dy, *x;
  const float *mean, *rstd;
  std::int64_t columns;
  __device__ float2 operator()(std::int64_t i, std::int64_t) const {
    const std::int64_t row = i / columns;
    const float g = to_float(dy[i]);
    return {g, g * (to_float(x[i]) - mean[row]) * rstd[row]};
  }
};

// partial[slice][column] = sums over the slice's rows, in row order within each of kRows lanes, lanes then in order.
template <typename F>
__global__ void column_partials(std::int64_t rows, std::int64_t columns, F f, float2* partial) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const std::int64_t per_slice = (rows + gridDim.y - 1) / gridDim.y;
  const std::int64_t begin = blockIdx.y * per_slice;
  const std::int64_t end = begin + per_slice < rows ? begin + per_slice : rows;
  float2 sum{0.0f, 0.0f};
  if (column < columns) {
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kRows) {
      const float2 v = f(row * columns + column, column);
      sum.x += v.x;
      sum.y += v.y;
    }
  }
  __shared__ float2 lanes[kRows][kColumns];
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int lane = 1; lane < kRows; ++lane) {
      sum.x += lanes[lane][threadIdx.x].x;
      sum.y += lanes[lane][threadIdx.x].y;
    }
    partial[static_cast<std::int64_t>(blockIdx.y) * columns + column] = sum;
  }
}

__device__ float2 sum_slices(const float2* partial, int slices, std::int64_t columns, std::int64_t column) {
  float2 sum{0.0f, 0.0f};
  for (int s = 0; s < slices; ++s) {
    const float2 v = partial[s * columns + column];
    sum.x += v.x;
    sum.y += v.y;
  }
  return sum;
}

__global__ void finish_sums(const float2* partial, int slices, std::int64_t columns, float* first, float* second,
                            bool accumulate) {
  const std::int64_t column = first_index();
  if (column >= columns) return;
  const float2 sum = sum_slices(partial, slices, columns, column);
  if (first) first[column] = accumulate ? first[column] + sum.x : sum.x;
  if (second) second[column] = accumulate ? second[column] + sum.y : sum.y;
}

__global__ void finish_mean(const float2* partial, int slices, std::int64_t columns, float rows, float* mean) {
  const std::int64_t column = first_index();
  if (column < columns) mean[column] = sum_slices(partial, slices, columns, column).x / rows;
}

__global__ void finish_variance(const float2* partial, int slices, std::int64_t columns, float rows, float eps,
                                float momentum, const float* mean, float* rstd, float* running_mean,
                                float* running_var) {
  const std::int64_t column = first_index();
  if (column >= columns) return;
  const float squares = sum_slices(partial, slices, columns, column).x;
  rstd[column] = rsqrtf(squares / rows + eps);
  if (running_mean) {
    const float unbiased = rows > 1 ? squares / (rows - 1) : 0.0f;
    running_mean[column] += momentum * (mean[column] - running_mean[column]);
    running_var[column] += momentum * (unbiased - running_var[column]);
  }
}

template <typename F>
int run_partials(Stream stream, std::int64_t rows, std::int64_t columns, F f, void* scratch) {
  const int slices = slices_for(rows);
  const dim3 grid(static_cast<unsigned>((columns + kColumns - 1) / kColumns), static_cast<unsigned>(slices));
  launch(column_partials<F>, grid, dim3(kColumns, kRows), stream, rows, columns, f, static_cast<float2*>(scratch));
  return slices;
}

template <typename T>
__global__ void batch_norm_apply(std::int64_t count, std::int64_t channels, bool relu, const T* x, const T* residual,
                                 const float* gamma, const float* beta, const float* mean, const float* rstd_or_var,
                                 bool is_var, float eps, T* y) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const std::int64_t c = i % channels;
    const float rstd = is_var ? rsqrtf(rstd_or_var[c] + eps) : rstd_or_var[c];
    float v = (to_float(x[i]) - mean[c]) * rstd * gamma[c] + beta[c];
    if (residual) v += to_float(residual[i]);
    y[i] = from_float<T>(relu && v < 0 ? 0.0f : v);
  }
}

template <typename T>
__global__ void batch_norm_dx(std::int64_t count, std::int64_t channels, float rows, bool relu, const T* dy, const T* x,
                              const T* y, const float* gamma, const float* mean, const float* rstd,
                              const float2* totals, T* dx, T* dresidual, bool accumulate_residual) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const std::int64_t c = i % channels;
    const float g = relu && !(to_float(y[i]) > 0) ? 0.0f : to_float(dy[i]);
    if (dresidual) dresidual[i] = from_float<T>(accumulate_residual ? to_float(dresidual[i]) + g : g);
    if (dx) {
      const float2 sums = totals[c];
      const float xhat = (to_float(x[i]) - mean[c]) * rstd[c];
      dx[i] = from_float<T>(gamma[c] * rstd[c] * (g - sums.x / rows - xhat * sums.y / rows));
    }
  }
}

// Folds all slices into slice 0, so that the elementwise kernel reads one entry per channel.
__global__ void finish_totals(float2* partial, int slices, std::int64_t columns) {
  const std::int64_t column = first_index();
  if (column < columns) partial[column] = sum_slices(partial, slices, columns, column);
}

template <typename T>
__global__ void layer_norm_kernel(std::int64_t columns, float eps, const T* x, const float* gamma, const float* beta,
                                  float* mean_out, float* rstd_out, T* y) {
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * columns;
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c < columns; c += kBlock) sum += to_float(x[base + c]);
  const float mean = block_sum<kBlock>(sum) / static_cast<float>(columns);
  float squares = 0;
  for (std::int64_t c = threadIdx.x; c < columns; c += kBlock) {
    const float d = to_float(x[base + c]) - mean;
    squares += d * d;
  }
  const float rstd = rsqrtf(block_sum<kBlock>(squares) / static_cast<float>(columns) + eps);
  for (std::int64_t c = threadIdx.x; c < columns; c += kBlock) {
    y[base + c] = from_float<T>((to_float(x[base + c]) - mean) * rstd * gamma[c] + beta[c]);
  }
  if (threadIdx.x == 0) {
    mean_out[blockIdx.x] = mean;
    rstd_out[blockIdx.x] = rstd;
  }
}

template <typename T>
__global__ void layer_norm_dx(std::int64_t columns, const T* dy, const T* x, const float* gamma, const float* mean_in,
                              const float* rstd_in, T* dx, bool accumulate) {
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * columns;
  const float mean = mean_in[blockIdx.x], rstd = rstd_in[blockIdx.x];
  float sum = 0, sum_xhat = 0;
  for (std::int64_t c = threadIdx.x; c < columns; c += kBlock) {
    const float g = to_float(dy[base + c]) * gamma[c];
    sum += g;
    sum_xhat += g * (to_float(x[base + c]) - mean) * rstd;
  }
  const float mean_g = block_sum<kBlock>(sum) / static_cast<float>(columns);
  const float mean_gx = block_sum<kBlock>(sum_xhat) / static_cast<float>(columns);
  for (std::int64_t c = threadIdx.x; c < columns; c += kBlock) {
    const float xhat = (to_float(x[base + c]) - mean) * rstd;
    const float v = rstd * (to_float(dy[base + c]) * gamma[c] - mean_g - xhat * mean_gx);
    dx[base + c] = from_float<T>(accumulate ? to_float(dx[base + c]) + v : v);
  }
}

}  // namespace

void column_sums(Stream stream, DType type, std::int64_t rows, std::int64_t columns, const void* x, float* out,
                 bool accumulate, void* scratch) {
  if (columns == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    const int slices = run_partials(stream, rows, columns, Plain<T>{static_cast<const T*>(x)}, scratch);
    launch(finish_sums, grid_for(columns), kBlock, stream, static_cast<const float2*>(scratch), slices, columns, out,
           nullptr, accumulate);
  });
}

void batch_norm_train(Stream stream, DType type, const BatchNormDesc& desc, const void* x, const void* residual,
                      const float* gamma, const float* beta, float* running_mean, float* running_var, float* mean,
                      float* rstd, void* y, void* scratch) {
  const std::int64_t count = desc.rows * desc.channels;
  if (count == 0) return;
  const float rows = static_cast<float>(desc.rows);
  const auto* partial = static_cast<const float2*>(scratch);
  const unsigned grid = grid_for(desc.channels);
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    const auto* in = static_cast<const T*>(x);
    int slices = run_partials(stream, desc.rows, desc.channels, Plain<T>{in}, scratch);
    launch(finish_mean, grid, kBlock, stream, partial, slices, desc.channels, rows, mean);
    slices = run_partials(stream, desc.rows, desc.channels, SquaredDeviation<T>{in, mean}, scratch);
    launch(finish_variance, grid, kBlock, stream, partial, slices, desc.channels, rows, static_cast<float>(desc.eps),
           static_cast<float>(desc.momentum), mean, rstd, running_mean, running_var);
    launch(batch_norm_apply<T>, grid_for(count), kBlock, stream, count, desc.channels, desc.relu, in,
           static_cast<const T*>(residual), gamma, beta, mean, rstd, false, 0.0f, static_cast<T*>(y));
  });
}

void batch_norm_eval(Stream stream, DType type, const BatchNormDesc& desc, const void* x, const void* residual,
                     const float* gamma, const float* beta, const float* running_mean, const float* running_var,
                     void* y) {
  const std::int64_t count = desc.rows * desc.channels;
  if (count == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(batch_norm_apply<T>, grid_for(count), kBlock, stream, count, desc.channels, desc.relu,
           static_cast<const T*>(x), static_cast<const T*>(residual), gamma, beta, running_mean, running_var, true,
           static_cast<float>(desc.eps), static_cast<T*>(y));
  });
}

void batch_norm_backward(Stream stream, DType type, const BatchNormDesc& desc, const void* dy, const void* x,
                         const void* y, const float* gamma, const float* mean, const float* rstd, void* dx,
                         void* dresidual, bool accumulate_residual, float* dgamma, float* dbeta,
                         bool accumulate_parameters, void* scratch) {
  const std::int64_t count = desc.rows * desc.channels;
  if (desc.channels == 0) return;  // no rows: the sums become 0
  auto* partial = static_cast<float2*>(scratch);
  const unsigned grid = grid_for(desc.channels);
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    const BatchNormSums<T> sums{
        static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<const T*>(y), mean, rstd, desc.relu};
    const int slices = run_partials(stream, desc.rows, desc.channels, sums, scratch);
    launch(finish_sums, grid, kBlock, stream, partial, slices, desc.channels, dbeta, dgamma, accumulate_parameters);
    launch(finish_totals, grid, kBlock, stream, partial, slices, desc.channels);
    launch(batch_norm_dx<T>, grid_for(count), kBlock, stream, count, desc.channels, static_cast<float>(desc.rows),
           desc.relu, static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<const T*>(y), gamma, mean, rstd,
           partial, static_cast<T*>(dx), static_cast<T*>(dresidual), accumulate_residual);
  });
}

void layer_norm(Stream stream, DType type, const LayerNormDesc& desc, const void* x, const float* gamma,
                const float* beta, float* mean, float* rstd, void* y) {
  if (desc.rows == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(layer_norm_kernel<T>, static_cast<unsigned>(desc.rows), kBlock, stream, desc.columns,
           static_cast<float>(desc.eps), static_cast<const T*>(x), gamma, beta, mean, rstd, static_cast<T*>(y));
  });
}

void layer_norm_backward(Stream stream, DType type, const LayerNormDesc& desc, const void* dy, const void* x,
                         const float* gamma, const float* mean, const float* rstd, void* dx, bool accumulate_dx,
                         float* dgamma, float* dbeta, bool accumulate_parameters, void* scratch) {
  if (desc.columns == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    const auto* g = static_cast<const T*>(dy);
    const auto* in = static_cast<const T*>(x);
    if (dgamma || dbeta) {
      const int slices =
          run_partials(stream, desc.rows, desc.columns, LayerNormSums<T>{g, in, mean, rstd, desc.columns}, scratch);
      launch(finish_sums, grid_for(desc.columns), kBlock, stream, static_cast<const float2*>(scratch), slices,
             desc.columns, dbeta, dgamma, accumulate_parameters);
    }
    if (dx && desc.rows > 0) {
      launch(layer_norm_dx<T>, static_cast<unsigned>(desc.rows), kBlock, stream, desc.columns, g, in, gamma, mean, rstd,
             static_cast<T*>(dx), accumulate_dx);
    }
  });
}

}  // namespace ddprun::engine::gpu
