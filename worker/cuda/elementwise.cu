#include "worker/cuda/device_types.cuh"

namespace ddprun::engine::gpu {
namespace {

template <typename T, typename F>
__global__ void map_kernel(std::int64_t count, F f, T* y, bool accumulate) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const float value = f(i);
    y[i] = from_float<T>(accumulate ? to_float(y[i]) + value : value);
  }
}

template <typename T, typename F>
void map(Stream stream, std::int64_t count, F f, T* y, bool accumulate = false) {
  if (count == 0) return;
  launch(map_kernel<T, F>, grid_for(count), kBlock, stream, count, f, y, accumulate);
}

template <typename T>
struct Load {
  const T* x;
  __device__ float operator()(std::int64_t i) const { return to_float(x[i]); }
};

template <typename T>
struct Add {
  const T *a, *b;
  __device__ float operator()(std::int64_t i) const { return to_float(a[i]) + to_float(b[i]); }
};

template <typename T>
struct AddBroadcast {
  const T *x, *weight;
  std::int64_t inner;
  __device__ float operator()(std::int64_t i) const { return to_float(x[i]) + to_float(weight[i % inner]); }
};

struct Bias {
  const float* bias;
  std::int64_t columns;
  __device__ float operator()(std::int64_t i) const { return bias[i % columns]; }
};

template <typename T>
struct Relu {
  const T* x;
  __device__ float operator()(std::int64_t i) const {
    const float v = to_float(x[i]);
    return v > 0 ? v : v != v ? v : 0.0f;  // NaN stays, as in torch
  }
};

template <typename T>
struct ReluBackward {
  const T *dy, *y;
  __device__ float operator()(std::int64_t i) const { return to_float(y[i]) > 0 ? to_float(dy[i]) : 0.0f; }
};

constexpr float kSqrt2OverPi = 0.7978845608028654f;
constexpr float kGeluCubic = 0.044715f;

template <typename T>
struct Gelu {  // tanh form, as GPT-2's gelu_new
  const T* x;
  __device__ float operator()(std::int64_t i) const {
    const float v = to_float(x[i]);
    return 0.5f * v * (1.0f + tanhf(kSqrt2OverPi * (v + kGeluCubic * v * v * v)));
  }
};

template <typename T>
struct GeluBackward {
  const T *dy, *x;
  __device__ float operator()(std::int64_t i) const {
    const float v = to_float(x[i]);
    const float t = tanhf(kSqrt2OverPi * (v + kGeluCubic * v * v * v));
    const float slope =
        0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * kSqrt2OverPi * (1.0f + 3.0f * kGeluCubic * v * v);
    return to_float(dy[i]) * slope;
  }
};

template <typename T>
struct Silu {
  const T* x;
  __device__ float operator()(std::int64_t i) const {
    const float v = to_float(x[i]);
    return v / (1.0f + expf(-v));
  }
};

template <typename T>
struct SiluBackward {
  const T *dy, *x;
  __device__ float operator()(std::int64_t i) const {
    const float v = to_float(x[i]), gate = 1.0f / (1.0f + expf(-v));
    return to_float(dy[i]) * gate * (1.0f + v * (1.0f - gate));
  }
};

template <typename T>
struct MseBackward {
  const T *prediction, *target;
  float factor;
  __device__ float operator()(std::int64_t i) const { return factor * (to_float(prediction[i]) - to_float(target[i])); }
};

template <typename T>
struct Embedding {
  const std::int32_t* ids;
  const T* weight;
  std::int64_t dim;
  __device__ float operator()(std::int64_t i) const {
    return to_float(weight[static_cast<std::int64_t>(ids[i / dim]) * dim + i % dim]);
  }
};

template <typename T>
struct ToOhwi {
  const T* in;
  std::int64_t channels, positions;
  __device__ float operator()(std::int64_t k) const {
    const std::int64_t c = k % channels, p = k / channels % positions, o = k / (channels * positions);
    return to_float(in[(o * channels + c) * positions + p]);
  }
};

template <typename T>
struct ToOihw {
  const T* in;
  std::int64_t channels, positions;
  __device__ float operator()(std::int64_t k) const {
    const std::int64_t p = k % positions, c = k / positions % channels, o = k / (channels * positions);
    return to_float(in[(o * positions + p) * channels + c]);
  }
};

constexpr int kIdsAtOnce = 512;

// The block of an id's first token adds all tokens of that id in their order; the blocks of the others end at once.
template <typename T>
__global__ void embedding_backward_kernel(std::int64_t count, std::int64_t dim, std::int64_t rows,
                                          const std::int32_t* ids, const T* dy, float* dweight) {
  __shared__ bool is_repeated;
  __shared__ std::int64_t last_hit;  // the last piece of ids with one of ours
  __shared__ bool ours[kIdsAtOnce];
  const std::int64_t mine = blockIdx.x;
  const std::int32_t row = ids[mine];
  if (threadIdx.x == 0) {
    is_repeated = row < 0 || row >= rows;
    last_hit = -1;
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < mine; i += blockDim.x) {
    if (ids[i] == row) is_repeated = true;
  }
  __syncthreads();
  if (is_repeated) return;
  for (std::int64_t at = mine; at < count; at += kIdsAtOnce) {
    for (int k = static_cast<int>(threadIdx.x); k < kIdsAtOnce; k += static_cast<int>(blockDim.x)) {
      ours[k] = at + k < count && ids[at + k] == row;
      if (ours[k]) last_hit = at;
    }
    __syncthreads();
    if (last_hit == at) {
      for (std::int64_t d = threadIdx.x; d < dim; d += blockDim.x) {
        float sum = dweight[row * dim + d];
        for (int k = 0; k < kIdsAtOnce; ++k) {
          if (ours[k]) sum += to_float(dy[(at + k) * dim + d]);
        }
        dweight[row * dim + d] = sum;
      }
    }
    __syncthreads();
  }
}

}  // namespace

void convert(Stream stream, DType from, DType to, const void* in, void* out, std::int64_t count) {
  with_type(from, [&](auto source) {
    with_type(to, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      map<To>(stream, count, Load<From>{static_cast<const From*>(in)}, static_cast<To*>(out));
    });
  });
}

void add(Stream stream, DType type, std::int64_t count, const void* a, const void* b, void* y) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count, Add<T>{static_cast<const T*>(a), static_cast<const T*>(b)}, static_cast<T*>(y));
  });
}

void add_broadcast(Stream stream, DType type, std::int64_t batch, std::int64_t inner, const void* x, const void* weight,
                   void* y) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, batch * inner, AddBroadcast<T>{static_cast<const T*>(x), static_cast<const T*>(weight), inner},
           static_cast<T*>(y));
  });
}

void add_bias(Stream stream, DType type, std::int64_t rows, std::int64_t columns, const float* bias, void* y) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, rows * columns, Bias{bias, columns}, static_cast<T*>(y), true);
  });
}

void relu(Stream stream, DType type, std::int64_t count, const void* x, void* y) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count, Relu<T>{static_cast<const T*>(x)}, static_cast<T*>(y));
  });
}

void relu_backward(Stream stream, DType type, std::int64_t count, const void* dy, const void* y, void* dx,
                   bool accumulate) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count, ReluBackward<T>{static_cast<const T*>(dy), static_cast<const T*>(y)}, static_cast<T*>(dx),
           accumulate);
  });
}

void gelu(Stream stream, DType type, std::int64_t count, const void* x, void* y) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count, Gelu<T>{static_cast<const T*>(x)}, static_cast<T*>(y));
  });
}

void gelu_backward(Stream stream, DType type, std::int64_t count, const void* dy, const void* x, void* dx,
                   bool accumulate) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count, GeluBackward<T>{static_cast<const T*>(dy), static_cast<const T*>(x)}, static_cast<T*>(dx),
           accumulate);
  });
}

void silu(Stream stream, DType type, std::int64_t count, const void* x, void* y) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count, Silu<T>{static_cast<const T*>(x)}, static_cast<T*>(y));
  });
}

void silu_backward(Stream stream, DType type, std::int64_t count, const void* dy, const void* x, void* dx,
                   bool accumulate) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count, SiluBackward<T>{static_cast<const T*>(dy), static_cast<const T*>(x)}, static_cast<T*>(dx),
           accumulate);
  });
}

void mse_backward(Stream stream, DType type, std::int64_t count, const void* prediction, const void* target,
                  double loss_scale, void* dprediction) {
  const float factor = static_cast<float>(2.0 * loss_scale / static_cast<double>(count));
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count, MseBackward<T>{static_cast<const T*>(prediction), static_cast<const T*>(target), factor},
           static_cast<T*>(dprediction));
  });
}

void embedding(Stream stream, DType type, std::int64_t count, std::int64_t dim, const std::int32_t* ids,
               const void* weight, void* y) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, count * dim, Embedding<T>{ids, static_cast<const T*>(weight), dim}, static_cast<T*>(y));
  });
}

void embedding_backward(Stream stream, DType type, std::int64_t count, std::int64_t dim, std::int64_t rows,
                        const std::int32_t* ids, const void* dy, float* dweight) {
  if (count == 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(embedding_backward_kernel<T>, static_cast<unsigned>(count), kBlock, stream, count, dim, rows, ids,
           static_cast<const T*>(dy), dweight);
  });
}

void oihw_to_ohwi(Stream stream, DType type, std::int64_t o, std::int64_t i, std::int64_t positions, const void* in,
                  void* out) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<T>(stream, o * i * positions, ToOhwi<T>{static_cast<const T*>(in), i, positions}, static_cast<T*>(out));
  });
}

void ohwi_to_oihw_master(Stream stream, DType type, std::int64_t o, std::int64_t i, std::int64_t positions,
                         const void* in, float* out, bool accumulate) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    map<float>(stream, o * i * positions, ToOihw<T>{static_cast<const T*>(in), i, positions}, out, accumulate);
  });
}

}  // namespace ddprun::engine::gpu
