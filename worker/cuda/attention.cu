#include "worker/cuda/device_types.cuh"
#include "worker/cuda/random.cuh"

namespace ddprun::engine::gpu {
namespace {

constexpr std::uint64_t kKeepAll = std::uint64_t{1} << 32;  // dropout_limit(0)

template <typename T>
__global__ void softmax_forward(std::int64_t tokens, float scale, std::uint64_t limit, float keep_scale, RandomKey key,
                                T* scores, float* log_sum) {
  const std::int64_t row = blockIdx.x % tokens;
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * tokens;
  float largest = -INFINITY;
  for (std::int64_t c = threadIdx.x; c <= row; c += kBlock)
    largest = fmaxf(largest, scale * to_float(scores[base + c]));
  largest = block_max<kBlock>(largest);
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c <= row; c += kBlock) sum += expf(scale * to_float(scores[base + c]) - largest);
  const float denominator = largest + logf(block_sum<kBlock>(sum));
  for (std::int64_t c = threadIdx.x; c < tokens; c += kBlock) {
    float p = 0;
    if (c <= row) {
      p = expf(scale * to_float(scores[base + c]) - denominator);
      if (limit < kKeepAll) p *= dropout_factor(key, static_cast<std::uint64_t>(base + c), limit, keep_scale);
    }
    scores[base + c] = from_float<T>(p);
  }
  if (threadIdx.x == 0) log_sum[blockIdx.x] = denominator;
}

template <typename T>
__global__ void softmax_again(std::int64_t tokens, float scale, std::uint64_t limit, float keep_scale, RandomKey key,
                              T* scores, T* dropped, const float* log_sum) {
  const std::int64_t row = blockIdx.x % tokens;
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * tokens;
  const float denominator = log_sum[blockIdx.x];
  for (std::int64_t c = threadIdx.x; c < tokens; c += kBlock) {
    const float p = c <= row ? expf(scale * to_float(scores[base + c]) - denominator) : 0.0f;
    scores[base + c] = from_float<T>(p);
    const float factor = limit < kKeepAll && c <= row
                             ? dropout_factor(key, static_cast<std::uint64_t>(base + c), limit, keep_scale)
                             : 1.0f;
    dropped[base + c] = from_float<T>(p * factor);
  }
}

template <typename T>
__global__ void softmax_backward(std::int64_t tokens, float scale, std::uint64_t limit, float keep_scale, RandomKey key,
                                 const T* probabilities, T* dscores) {
  const std::int64_t row = blockIdx.x % tokens;
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * tokens;
  float dot = 0;
  for (std::int64_t c = threadIdx.x; c <= row; c += kBlock) {
    float g = to_float(dscores[base + c]);
    if (limit < kKeepAll) g *= dropout_factor(key, static_cast<std::uint64_t>(base + c), limit, keep_scale);
    dot += to_float(probabilities[base + c]) * g;
  }
  dot = block_sum<kBlock>(dot);
  for (std::int64_t c = threadIdx.x; c < tokens; c += kBlock) {
    float v = 0;
    if (c <= row) {
      float g = to_float(dscores[base + c]);
      if (limit < kKeepAll) g *= dropout_factor(key, static_cast<std::uint64_t>(base + c), limit, keep_scale);
      v = scale * to_float(probabilities[base + c]) * (g - dot);
    }
    dscores[base + c] = from_float<T>(v);
  }
}

template <typename T>
__global__ void dropout_kernel(std::int64_t count, std::uint64_t limit, float keep_scale, RandomKey key, const T* x,
                               T* y, bool accumulate) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const float v = to_float(x[i]) * dropout_factor(key, static_cast<std::uint64_t>(i), limit, keep_scale);
    y[i] = from_float<T>(accumulate ? to_float(y[i]) + v : v);
  }
}

}  // namespace

void causal_softmax(Stream stream, DType type, std::int64_t matrices, std::int64_t tokens, double scale, double dropout,
                    const RandomKey& key, void* scores, float* log_sum) {
  if (matrices * tokens == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(softmax_forward<T>, static_cast<unsigned>(matrices * tokens), kBlock, stream, tokens,
           static_cast<float>(scale), dropout_limit(dropout), static_cast<float>(1.0 / (1.0 - dropout)), key,
           static_cast<T*>(scores), log_sum);
  });
}

void causal_softmax_again(Stream stream, DType type, std::int64_t matrices, std::int64_t tokens, double scale,
                          double dropout, const RandomKey& key, void* scores, void* dropped, const float* log_sum) {
  if (matrices * tokens == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(softmax_again<T>, static_cast<unsigned>(matrices * tokens), kBlock, stream, tokens,
           static_cast<float>(scale), dropout_limit(dropout), static_cast<float>(1.0 / (1.0 - dropout)), key,
           static_cast<T*>(scores), static_cast<T*>(dropped), log_sum);
  });
}

void causal_softmax_backward(Stream stream, DType type, std::int64_t matrices, std::int64_t tokens, double scale,
                             double dropout, const RandomKey& key, const void* probabilities, void* dscores) {
  if (matrices * tokens == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(softmax_backward<T>, static_cast<unsigned>(matrices * tokens), kBlock, stream, tokens,
           static_cast<float>(scale), dropout_limit(dropout), static_cast<float>(1.0 / (1.0 - dropout)), key,
           static_cast<const T*>(probabilities), static_cast<T*>(dscores));
  });
}

void dropout(Stream stream, DType type, std::int64_t count, double p, const RandomKey& key, const void* x, void* y,
             bool accumulate) {
  if (count == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(dropout_kernel<T>, grid_for(count), kBlock, stream, count, dropout_limit(p),
           static_cast<float>(1.0 / (1.0 - p)), key, static_cast<const T*>(x), static_cast<T*>(y), accumulate);
  });
}

}  // namespace ddprun::engine::gpu
