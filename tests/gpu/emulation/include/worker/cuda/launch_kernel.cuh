#pragma once

// Found before worker/cuda/launch_kernel.cuh when the .cu files are compiled for the host: kernels become plain
// functions that run thread by thread.
#include <math.h>

#include <cmath>
#include <cstdint>
#include <functional>

#undef __shared__
#define __shared__ static  // one block runs at a time
#undef __global__
#define __global__
#undef __device__
#define __device__

namespace ddprun::emulated {
struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Place {
  Index thread, block, block_dim, grid_dim;
};
Place& place();  // of the thread that runs
void barrier();
void launch(const void* kernel, Index grid, Index block, void* stream, std::function<void()> thread);
}  // namespace ddprun::emulated

#define threadIdx (::ddprun::emulated::place().thread)
#define blockIdx (::ddprun::emulated::place().block)
#define blockDim (::ddprun::emulated::place().block_dim)
#define gridDim (::ddprun::emulated::place().grid_dim)

inline void __syncthreads() { ::ddprun::emulated::barrier(); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

namespace ddprun::engine::gpu {

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream, Arguments... arguments) {
  // Parameters are copied at the launch, as CUDA does.
  emulated::launch(reinterpret_cast<const void*>(kernel), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, stream,
                   [kernel, ... copies = static_cast<Parameters>(arguments)] { kernel(copies...); });
}

}  // namespace ddprun::engine::gpu
