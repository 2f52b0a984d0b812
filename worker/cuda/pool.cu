#include "worker/cuda/device_types.cuh"

namespace ddprun::engine::gpu {
namespace {

template <typename T>
__global__ void max_pool_kernel(std::int64_t count, PoolDesc d, std::int64_t oh, std::int64_t ow, const T* x, T* y,
                                std::uint8_t* index) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const std::int64_t c = i % d.c, ox = i / d.c % ow, oy = i / (d.c * ow) % oh, n = i / (d.c * ow * oh);
    float best = 0;
    int best_at = -1;
    for (std::int64_t ky = 0; ky < d.kernel; ++ky) {
      const std::int64_t iy = oy * d.stride - d.padding + ky;
      if (iy < 0 || iy >= d.h) continue;
      for (std::int64_t kx = 0; kx < d.kernel; ++kx) {
        const std::int64_t ix = ox * d.stride - d.padding + kx;
        if (ix < 0 || ix >= d.w) continue;
        const float v = to_float(x[((n * d.h + iy) * d.w + ix) * d.c + c]);
        if (best_at < 0 || v > best || v != v) {  // a NaN wins, as in torch
          best = v;
          best_at = static_cast<int>(ky * d.kernel + kx);
        }
      }
    }
    y[i] = from_float<T>(best);
    index[i] = static_cast<std::uint8_t>(best_at);
  }
}

// One thread per input element gathers from the windows that chose it: fixed order, no atomics.
template <typename T>
__global__ void max_pool_backward_kernel(std::int64_t count, PoolDesc d, std::int64_t oh, std::int64_t ow, const T* dy,
                                         const std::uint8_t* index, T* dx, bool accumulate) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const std::int64_t c = i % d.c, ix = i / d.c % d.w, iy = i / (d.c * d.w) % d.h, n = i / (d.c * d.w * d.h);
    float sum = accumulate ? to_float(dx[i]) : 0.0f;
    for (std::int64_t ky = 0; ky < d.kernel; ++ky) {
      const std::int64_t ty = iy + d.padding - ky;
      if (ty < 0 || ty % d.stride != 0 || ty / d.stride >= oh) continue;
      for (std::int64_t kx = 0; kx < d.kernel; ++kx) {
        const std::int64_t tx = ix + d.padding - kx;
        if (tx < 0 || tx % d.stride != 0 || tx / d.stride >= ow) continue;
        const std::int64_t o = ((n * oh + ty / d.stride) * ow + tx / d.stride) * d.c + c;
        if (index[o] == ky * d.kernel + kx) sum += to_float(dy[o]);
      }
    }
    dx[i] = from_float<T>(sum);
  }
}

template <typename T>
__global__ void mean_pool_kernel(std::int64_t count, std::int64_t positions, std::int64_t channels, const T* x, T* y) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const std::int64_t c = i % channels, n = i / channels;
    float sum = 0;
    for (std::int64_t p = 0; p < positions; ++p) sum += to_float(x[(n * positions + p) * channels + c]);
    y[i] = from_float<T>(sum / static_cast<float>(positions));
  }
}

template <typename T>
__global__ void mean_pool_backward_kernel(std::int64_t count, std::int64_t positions, std::int64_t channels,
                                          const T* dy, T* dx, bool accumulate) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const std::int64_t c = i % channels, n = i / (channels * positions);
    const float v = to_float(dy[n * channels + c]) / static_cast<float>(positions);
    dx[i] = from_float<T>(accumulate ? to_float(dx[i]) + v : v);
  }
}

}  // namespace

void max_pool(Stream stream, DType type, const PoolDesc& desc, const void* x, void* y, std::uint8_t* index) {
  const std::int64_t count = desc.n * desc.oh() * desc.ow() * desc.c;
  if (count == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(max_pool_kernel<T>, grid_for(count), kBlock, stream, count, desc, desc.oh(), desc.ow(),
           static_cast<const T*>(x), static_cast<T*>(y), index);
  });
}

void max_pool_backward(Stream stream, DType type, const PoolDesc& desc, const void* dy, const std::uint8_t* index,
                       void* dx, bool accumulate) {
  const std::int64_t count = desc.n * desc.h * desc.w * desc.c;
  if (count == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(max_pool_backward_kernel<T>, grid_for(count), kBlock, stream, count, desc, desc.oh(), desc.ow(),
           static_cast<const T*>(dy), index, static_cast<T*>(dx), accumulate);
  });
}

void mean_pool(Stream stream, DType type, std::int64_t n, std::int64_t positions, std::int64_t channels, const void* x,
               void* y) {
  const std::int64_t count = n * channels;
  if (count == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(mean_pool_kernel<T>, grid_for(count), kBlock, stream, count, positions, channels, static_cast<const T*>(x),
           static_cast<T*>(y));
  });
}

void mean_pool_backward(Stream stream, DType type, std::int64_t n, std::int64_t positions, std::int64_t channels,
                        const void* dy, void* dx, bool accumulate) {
  const std::int64_t count = n * positions * channels;
  if (count == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(mean_pool_backward_kernel<T>, grid_for(count), kBlock, stream, count, positions, channels,
           static_cast<const T*>(dy), static_cast<T*>(dx), accumulate);
  });
}

}  // namespace ddprun::engine::gpu
