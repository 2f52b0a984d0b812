#include "worker/cuda/device_types.cuh"

namespace ddprun::engine::gpu {
namespace {

template <typename T>
__global__ void sgd_kernel(std::int64_t count, float lr, float momentum, float dampening, bool nesterov, bool first,
                           float unscale, float clip, float decay, float* parameter, const float* gradient,
                           float* buffer, T* low) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    float g = gradient[i] * unscale * clip + decay * parameter[i];
    if (buffer) {
      const float b = first ? g : momentum * buffer[i] + (1.0f - dampening) * g;
      buffer[i] = b;
      g = nesterov ? g + momentum * b : b;
    }
    const float p = parameter[i] - lr * g;
    parameter[i] = p;
    if (low) low[i] = from_float<T>(p);
  }
}

template <typename T>
__global__ void adamw_kernel(std::int64_t count, float lr, float beta1, float beta2, float eps, float correction1,
                             float root_correction2, float unscale, float clip, float decay, float l2, float* parameter,
                             const float* gradient, float* average, float* squares, T* low) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const float g = gradient[i] * unscale * clip + l2 * parameter[i];
    float p = parameter[i] * (1.0f - lr * decay);
    const float m = average[i] + (g - average[i]) * (1.0f - beta1);
    const float v = beta2 * squares[i] + (1.0f - beta2) * g * g;
    average[i] = m;
    squares[i] = v;
    p -= lr / correction1 * m / (sqrtf(v) / root_correction2 + eps);
    parameter[i] = p;
    if (low) low[i] = from_float<T>(p);
  }
}

constexpr int kNormBlocks = 1024;

__global__ void norm_partials(std::int64_t count, float unscale, const float* gradient, double* partial,
                              int* found_inf) {
  double sum = 0;
  bool bad = false;
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const float g = gradient[i] * unscale;
    if (!isfinite(gradient[i])) bad = true;
    sum += static_cast<double>(g) * static_cast<double>(g);
  }
  sum = block_sum<kBlock>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
  if (bad) *found_inf = 1;  // every writer writes the same value
}

__global__ void norm_finish(int blocks, const double* partial, double* squared) {
  double sum = 0;
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kBlock) sum += partial[b];
  sum = block_sum<kBlock>(sum);
  if (threadIdx.x == 0) *squared += sum;
}

}  // namespace

void sgd(Stream stream, DType low_type, const UpdateChunk& chunk, const SgdUpdate& update) {
  if (chunk.count == 0) return;
  with_type(low_type, [&](auto tag) {
    using T = decltype(tag);
    launch(sgd_kernel<T>, grid_for(chunk.count), kBlock, stream, chunk.count, static_cast<float>(update.lr),
           static_cast<float>(update.momentum), static_cast<float>(update.dampening), update.nesterov, update.first,
           static_cast<float>(update.unscale), static_cast<float>(update.clip), chunk.decay,
           static_cast<float*>(chunk.parameter), static_cast<const float*>(chunk.gradient),
           static_cast<float*>(chunk.state1), static_cast<T*>(chunk.low));
  });
}

void adamw(Stream stream, DType low_type, const UpdateChunk& chunk, const AdamwUpdate& update) {
  if (chunk.count == 0) return;
  with_type(low_type, [&](auto tag) {
    using T = decltype(tag);
    launch(adamw_kernel<T>, grid_for(chunk.count), kBlock, stream, chunk.count, static_cast<float>(update.lr),
           static_cast<float>(update.beta1), static_cast<float>(update.beta2), static_cast<float>(update.eps),
           static_cast<float>(update.correction1), static_cast<float>(sqrt(update.correction2)),
           static_cast<float>(update.unscale), static_cast<float>(update.clip), update.decoupled ? chunk.decay : 0,
           update.decoupled ? 0 : chunk.decay, static_cast<float*>(chunk.parameter),
           static_cast<const float*>(chunk.gradient), static_cast<float*>(chunk.state1),
           static_cast<float*>(chunk.state2), static_cast<T*>(chunk.low));
  });
}

void gradient_norm(Stream stream, const float* gradient, std::int64_t count, double unscale, double* squared,
                   int* found_inf, double* scratch) {
  if (count == 0) return;
  const std::int64_t wanted = (count + kBlock - 1) / kBlock;
  const int blocks = static_cast<int>(wanted < kNormBlocks ? wanted : kNormBlocks);
  launch(norm_partials, static_cast<unsigned>(blocks), kBlock, stream, count, static_cast<float>(unscale), gradient,
         scratch, found_inf);
  launch(norm_finish, 1, kBlock, stream, blocks, scratch, squared);
}

}  // namespace ddprun::engine::gpu
