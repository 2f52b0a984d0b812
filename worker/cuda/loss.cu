#include "worker/cuda/device_types.cuh"

namespace ddprun::engine::gpu {
namespace {

// One block per row: log of the softmax denominator and the row's loss. row_loss: {loss, 1 if the row counts}.
template <typename T>
__global__ void cross_entropy_rows(CrossEntropyDesc d, const T* logits, const std::int32_t* targets, float* log_sum,
                                   double2* row_loss) {
  const T* row = logits + static_cast<std::int64_t>(blockIdx.x) * d.classes;
  float largest = -INFINITY;
  for (std::int64_t c = threadIdx.x; c < d.classes; c += kBlock) largest = fmaxf(largest, to_float(row[c]));
  largest = block_max<kBlock>(largest);
  float sum = 0, total = 0;
  for (std::int64_t c = threadIdx.x; c < d.classes; c += kBlock) {
    const float v = to_float(row[c]);
    sum += expf(v - largest);
    total += v;
  }
  sum = block_sum<kBlock>(sum);
  total = block_sum<kBlock>(total);
  if (threadIdx.x == 0) {
    const float denominator = largest + logf(sum);
    log_sum[blockIdx.x] = denominator;
    const std::int32_t target = targets[blockIdx.x];
    double2 result{0.0, 0.0};
    if (target != d.ignore_index) {
      const double nll = static_cast<double>(denominator) - to_float(row[target]);
      const double smooth = static_cast<double>(denominator) - static_cast<double>(total) / d.classes;
      result = {(1.0 - d.label_smoothing) * nll + d.label_smoothing * smooth, 1.0};
    }
    row_loss[blockIdx.x] = result;
  }
}

__global__ void cross_entropy_mean(std::int64_t rows, double2* row_loss, double* loss) {
  double sum = 0, kept = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += kBlock) {
    sum += row_loss[r].x;
    kept += row_loss[r].y;
  }
  sum = block_sum<kBlock>(sum);
  kept = block_sum<kBlock>(kept);
  if (threadIdx.x == 0) *loss = sum / kept;  // nan without a kept row, as torch
}

__global__ void count_kept(std::int64_t rows, const std::int32_t* targets, std::int32_t ignore, double* kept_out) {
  double kept = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += kBlock) kept += targets[r] != ignore ? 1.0 : 0.0;
  kept = block_sum<kBlock>(kept);
  if (threadIdx.x == 0) *kept_out = kept;
}

template <typename T>
__global__ void cross_entropy_dlogits(std::int64_t count, CrossEntropyDesc d, const T* logits,
                                      const std::int32_t* targets, const float* log_sum, float loss_scale,
                                      const double* kept, T* dlogits) {
  const float factor = loss_scale / static_cast<float>(*kept);
  const float off_target = static_cast<float>(d.label_smoothing / static_cast<double>(d.classes));
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    const std::int64_t row = i / d.classes, c = i % d.classes;
    const std::int32_t target = targets[row];
    float v = 0;
    if (target != d.ignore_index) {
      const float p = expf(to_float(logits[i]) - log_sum[row]);
      v = factor * (p - off_target - (c == target ? static_cast<float>(1.0 - d.label_smoothing) : 0.0f));
    }
    dlogits[i] = from_float<T>(v);
  }
}

template <typename T>
__global__ void mse_kernel(std::int64_t count, const T* prediction, const T* target, double* loss) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kBlock) {
    const double d = static_cast<double>(to_float(prediction[i])) - static_cast<double>(to_float(target[i]));
    sum += d * d;
  }
  sum = block_sum<kBlock>(sum);
  if (threadIdx.x == 0) *loss = sum / static_cast<double>(count);
}

}  // namespace

void cross_entropy(Stream stream, DType type, const CrossEntropyDesc& desc, const void* logits,
                   const std::int32_t* targets, double* loss, float* log_sum, void* scratch) {
  auto* row_loss = static_cast<double2*>(scratch);
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    if (desc.rows > 0) {
      launch(cross_entropy_rows<T>, static_cast<unsigned>(desc.rows), kBlock, stream, desc,
             static_cast<const T*>(logits), targets, log_sum, row_loss);
    }
  });
  launch(cross_entropy_mean, 1, kBlock, stream, desc.rows, row_loss, loss);
}

void cross_entropy_backward(Stream stream, DType type, const CrossEntropyDesc& desc, const void* logits,
                            const std::int32_t* targets, const float* log_sum, double loss_scale, void* dlogits,
                            double* kept) {
  const std::int64_t count = desc.rows * desc.classes;
  if (count == 0) return;
  launch(count_kept, 1, kBlock, stream, desc.rows, targets, desc.ignore_index, kept);
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(cross_entropy_dlogits<T>, grid_for(count), kBlock, stream, count, desc, static_cast<const T*>(logits),
           targets, log_sum, static_cast<float>(loss_scale), kept, static_cast<T*>(dlogits));
  });
}

void mse(Stream stream, DType type, std::int64_t count, const void* prediction, const void* target, double* loss) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    launch(mse_kernel<T>, 1, kBlock, stream, count, static_cast<const T*>(prediction), static_cast<const T*>(target),
           loss);
  });
}

}  // namespace ddprun::engine::gpu
