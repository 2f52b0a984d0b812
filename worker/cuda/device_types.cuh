#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "worker/cuda/launch.h"
#include "worker/cuda/launch_kernel.cuh"

// What the .cu files share: conversions, a fixed-order block sum, and the choice of the activations' type.
namespace ddprun::engine::gpu {

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }

template <typename T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16(v);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float v) {
  return __float2half(v);
}

// Sum over the block's threads (a power of two), the same order every time. Every thread gets the result.
template <int kThreads, typename S>
__device__ S block_sum(S value) {
  __shared__ S shared[kThreads];
  const int t = static_cast<int>(threadIdx.x);
  shared[t] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (t < half) shared[t] += shared[t + half];
    __syncthreads();
  }
  const S total = shared[0];
  __syncthreads();
  return total;
}

template <int kThreads>
__device__ float block_max(float value) {
  __shared__ float shared[kThreads];
  const int t = static_cast<int>(threadIdx.x);
  shared[t] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (t < half) shared[t] = fmaxf(shared[t], shared[t + half]);
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();
  return result;
}

inline constexpr int kBlock = 256;

// Blocks for a grid-stride loop over `count` elements.
inline unsigned grid_for(std::int64_t count) {
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 65535 ? 65535 : blocks);
}

__device__ __forceinline__ std::int64_t first_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t index_step() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

// Calls f with a value of the C++ type that `type` names.
template <typename F>
void with_type(DType type, F f) {
  switch (type) {
    case DType::bf16:
      f(__nv_bfloat16{});
      break;
    case DType::f16:
      f(__half{});
      break;
    default:
      f(float{});
      break;
  }
}

}  // namespace ddprun::engine::gpu
