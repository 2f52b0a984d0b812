// The cuDNN calls of worker/cuda/cuda_conv.cc: convolutions in plain loops over the strides of the descriptors.
#include <cudnn.h>

#include <cstring>

#include "tests/gpu/emulation/device.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace em = ddprun::emulated;

namespace {

struct Handle {
  void* stream = nullptr;
};
// A tensor n, c, h, w or a filter k, c, h, w; strides by format.
struct Tensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::int64_t size[4] = {0, 0, 0, 0}, stride[4] = {0, 0, 0, 0};
  bool set(cudnnTensorFormat_t format, cudnnDataType_t t, int n, int c, int h, int w) {
    if (n < 1 || c < 1 || h < 1 || w < 1) return false;
    type = t;
    const std::int64_t sizes[4] = {n, c, h, w};
    std::memcpy(size, sizes, sizeof size);
    const std::int64_t nhwc[4] = {std::int64_t{c} * h * w, 1, std::int64_t{c} * w, c};
    const std::int64_t nchw[4] = {std::int64_t{c} * h * w, std::int64_t{h} * w, w, 1};
    std::memcpy(stride, format == CUDNN_TENSOR_NHWC ? nhwc : nchw, sizeof stride);
    return true;
  }
  std::int64_t at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return n * stride[0] + c * stride[1] + h * stride[2] + w * stride[3];
  }
  em::Type of() const {
    return type == CUDNN_DATA_FLOAT ? em::Type::f32 : type == CUDNN_DATA_BFLOAT16 ? em::Type::bf16 : em::Type::f16;
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(size[0] * size[1] * size[2] * size[3]) * em::bytes_of(of());
  }
};
struct Convolution {
  int pad_h = 0, pad_w = 0, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  cudnnConvolutionMode_t mode = CUDNN_CONVOLUTION;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

// An odd size, so that whoever rounds or forgets it shows; overwritten by every call.
constexpr std::size_t kScratch = 1027;

cudnnStatus_t call(const char* name, void* stream = nullptr, bool creates = false) {
  return static_cast<cudnnStatus_t>(em::called(name, stream, creates));
}
template <typename T, typename Handle>
T* as(Handle handle) {
  return reinterpret_cast<T*>(handle);
}
template <typename T, typename Out>
cudnnStatus_t create(const char* name, const char* kind, Out* out) {
  if (const cudnnStatus_t status = call(name, nullptr, true)) return status;
  *out = reinterpret_cast<Out>(new T);
  em::count(kind, 1);
  return CUDNN_STATUS_SUCCESS;
}
template <typename T, typename In>
cudnnStatus_t destroy(const char* name, const char* kind, In in) {
  delete reinterpret_cast<T*>(in);
  em::count(kind, -1);
  return call(name, nullptr, true);
}

bool fits(const Tensor& x, const Tensor& w, const Convolution& c, const Tensor& y) {
  const auto out = [](std::int64_t in, int pad, std::int64_t kernel, int stride) {
    return (in + 2 * pad - kernel) / stride + 1;
  };
  const bool good = x.size[0] == y.size[0] && x.size[1] == w.size[1] && y.size[1] == w.size[0] &&
                    y.size[2] == out(x.size[2], c.pad_h, w.size[2], c.stride_h) &&
                    y.size[3] == out(x.size[3], c.pad_w, w.size[3], c.stride_w) && x.type == y.type &&
                    x.type == w.type && c.compute == CUDNN_DATA_FLOAT && c.mode == CUDNN_CROSS_CORRELATION &&
                    c.dilation_h == 1 && c.dilation_w == 1;
  if (!good) em::violated("descriptors of a convolution that do not fit each other");
  if (x.type != CUDNN_DATA_FLOAT && c.math == CUDNN_FMA_MATH) em::violated("FMA math for 16-bit tensors");
  return good;
}

// Calls f(output element, input element, filter element) for every product of the convolution.
template <typename F>
void each_product(const Tensor& x, const Tensor& w, const Convolution& c, const Tensor& y, F f) {
  for (std::int64_t n = 0; n < y.size[0]; ++n)
    for (std::int64_t o = 0; o < y.size[1]; ++o)
      for (std::int64_t i = 0; i < y.size[2]; ++i)
        for (std::int64_t j = 0; j < y.size[3]; ++j)
          for (std::int64_t r = 0; r < w.size[2]; ++r) {
            const std::int64_t ih = i * c.stride_h - c.pad_h + r;
            if (ih < 0 || ih >= x.size[2]) continue;
            for (std::int64_t s = 0; s < w.size[3]; ++s) {
              const std::int64_t iw = j * c.stride_w - c.pad_w + s;
              if (iw < 0 || iw >= x.size[3]) continue;
              for (std::int64_t ch = 0; ch < x.size[1]; ++ch)
                f(y.at(n, o, i, j), x.at(n, ch, ih, iw), w.at(o, ch, r, s));
            }
          }
}

// out = alpha * sums + beta * out, rounded once.
void finish(const Tensor& t, void* out, const std::vector<double>& sums, float alpha, float beta) {
  for (std::size_t e = 0; e < sums.size(); ++e) {
    const auto i = static_cast<std::int64_t>(e);
    double value = static_cast<double>(alpha) * sums[e];
    if (beta != 0) value += static_cast<double>(beta) * em::load(t.of(), out, i);
    em::store(t.of(), out, i, value);
  }
}
std::size_t elements(const Tensor& t) { return t.bytes() / em::bytes_of(t.of()); }

// One algorithm that may give other bits each time, then one that may not.
template <typename Perf, typename Algorithm>
cudnnStatus_t list(int wanted, int* count, Perf* out, Algorithm fickle, Algorithm steady, const Convolution& c) {
  *count = wanted < 2 ? wanted : 2;
  for (int i = 0; i < *count; ++i) {
    out[i] = {};
    out[i].algo = i == 0 ? fickle : steady;
    out[i].status = CUDNN_STATUS_SUCCESS;
    out[i].determinism = i == 0 ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
    out[i].memory = i == 0 ? 0 : kScratch;
    out[i].mathType = c.math;
  }
  return CUDNN_STATUS_SUCCESS;
}

struct Operands {
  Tensor x, w, y;
  Convolution c;
};
// Checks what all three directions share; the filter lies at `filter`.
cudnnStatus_t check(const char* name, const Operands& o, const void* x, const void* filter, const void* y, bool steady,
                    void* workspace, std::size_t workspace_bytes, float beta, void* stream) {
  if (const cudnnStatus_t status = call(name, stream)) return status;
  if (!steady) em::violated(std::string(name) + " with an algorithm that does not repeat its bits");
  if (!fits(o.x, o.w, o.c, o.y)) return CUDNN_STATUS_BAD_PARAM;
  const std::string what = name;
  const bool good = em::reaches(x, o.x.bytes(), "x of " + what) && em::reaches(filter, o.w.bytes(), "w of " + what) &&
                    em::reaches(y, o.y.bytes(), "y of " + what) &&
                    em::reaches(workspace, kScratch, "workspace of " + what) && workspace_bytes >= kScratch;
  if (!good) return CUDNN_STATUS_BAD_PARAM;
  em::descriptors().push_back(what + " x=" + std::to_string(o.x.size[0]) + "x" + std::to_string(o.x.size[2]) + "x" +
                              std::to_string(o.x.size[3]) + "x" + std::to_string(o.x.size[1]) +
                              " oc=" + std::to_string(o.w.size[0]) + " kernel=" + std::to_string(o.w.size[2]) +
                              " stride=" + std::to_string(o.c.stride_h) + " pad=" + std::to_string(o.c.pad_h) + " " +
                              em::name_of(o.x.of()) + (o.c.math == CUDNN_FMA_MATH ? " fma" : " tensor") +
                              (beta != 0 ? " beta=1" : " beta=0"));
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return create<Handle>("cudnnCreate", "cudnn handle", handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy<Handle>("cudnnDestroy", "cudnn handle", handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  as<Handle>(handle)->stream = stream;
  return call("cudnnSetStream", stream);
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* made) {
  return create<Tensor>("cudnnCreateTensorDescriptor", "cudnn tensor", made);
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
  return destroy<Tensor>("cudnnDestroyTensorDescriptor", "cudnn tensor", tensor);
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) {
  return create<Tensor>("cudnnCreateFilterDescriptor", "cudnn filter", made);
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  return destroy<Tensor>("cudnnDestroyFilterDescriptor", "cudnn filter", filter);
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* made) {
  return create<Convolution>("cudnnCreateConvolutionDescriptor", "cudnn convolution", made);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  return destroy<Convolution>("cudnnDestroyConvolutionDescriptor", "cudnn convolution", convolution);
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  if (const cudnnStatus_t status = call("cudnnSetTensor4dDescriptor")) return status;
  return as<Tensor>(tensor)->set(format, type, n, c, h, w) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  if (const cudnnStatus_t status = call("cudnnSetFilter4dDescriptor")) return status;
  return as<Tensor>(filter)->set(format, type, k, c, h, w) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
  if (const cudnnStatus_t status = call("cudnnSetConvolution2dDescriptor")) return status;
  *as<Convolution>(convolution) = {pad_h,      pad_w, stride_h, stride_w,          dilation_h,
                                   dilation_w, mode,  compute,  CUDNN_DEFAULT_MATH};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  as<Convolution>(convolution)->math = math;
  return call("cudnnSetConvolutionMathType");
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t c,
                                                     const cudnnTensorDescriptor_t y, const int wanted, int* count,
                                                     cudnnConvolutionFwdAlgoPerf_t* out) {
  if (const cudnnStatus_t status = call("cudnnGetConvolutionForwardAlgorithm_v7", nullptr, true)) return status;
  if (!fits(*as<Tensor>(x), *as<Tensor>(w), *as<Convolution>(c), *as<Tensor>(y))) return CUDNN_STATUS_BAD_PARAM;
  return list(wanted, count, out, CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
              *as<Convolution>(c));
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t y,
                                                          const cudnnConvolutionDescriptor_t c,
                                                          const cudnnTensorDescriptor_t x, const int wanted, int* count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* out) {
  if (const cudnnStatus_t status = call("cudnnGetConvolutionBackwardDataAlgorithm_v7", nullptr, true)) return status;
  if (!fits(*as<Tensor>(x), *as<Tensor>(w), *as<Convolution>(c), *as<Tensor>(y))) return CUDNN_STATUS_BAD_PARAM;
  return list(wanted, count, out, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
              *as<Convolution>(c));
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t y,
                                                            const cudnnConvolutionDescriptor_t c,
                                                            const cudnnFilterDescriptor_t w, const int wanted,
                                                            int* count, cudnnConvolutionBwdFilterAlgoPerf_t* out) {
  if (const cudnnStatus_t status = call("cudnnGetConvolutionBackwardFilterAlgorithm_v7", nullptr, true)) return status;
  if (!fits(*as<Tensor>(x), *as<Tensor>(w), *as<Convolution>(c), *as<Tensor>(y))) return CUDNN_STATUS_BAD_PARAM;
  return list(wanted, count, out, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
              *as<Convolution>(c));
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                      const cudnnFilterDescriptor_t, const cudnnConvolutionDescriptor_t,
                                                      const cudnnTensorDescriptor_t, cudnnConvolutionFwdAlgo_t,
                                                      size_t* size) {
  *size = kScratch;
  return call("cudnnGetConvolutionForwardWorkspaceSize", nullptr, true);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t,
                                                           const cudnnTensorDescriptor_t,
                                                           const cudnnConvolutionDescriptor_t,
                                                           const cudnnTensorDescriptor_t, cudnnConvolutionBwdDataAlgo_t,
                                                           size_t* size) {
  *size = kScratch;
  return call("cudnnGetConvolutionBackwardDataWorkspaceSize", nullptr, true);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                             const cudnnTensorDescriptor_t,
                                                             const cudnnConvolutionDescriptor_t,
                                                             const cudnnFilterDescriptor_t,
                                                             cudnnConvolutionBwdFilterAlgo_t, size_t* size) {
  *size = kScratch;
  return call("cudnnGetConvolutionBackwardFilterWorkspaceSize", nullptr, true);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc,
                                      const void* x, const cudnnFilterDescriptor_t w_desc, const void* w,
                                      const cudnnConvolutionDescriptor_t c, cudnnConvolutionFwdAlgo_t algorithm,
                                      void* workspace, size_t workspace_bytes, const void* beta,
                                      const cudnnTensorDescriptor_t y_desc, void* y) {
  const Operands o{*as<Tensor>(x_desc), *as<Tensor>(w_desc), *as<Tensor>(y_desc), *as<Convolution>(c)};
  const float al = *static_cast<const float*>(alpha), be = *static_cast<const float*>(beta);
  void* stream = as<Handle>(handle)->stream;
  if (const cudnnStatus_t status =
          check("cudnnConvolutionForward", o, x, w, y, algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                workspace, workspace_bytes, be, stream)) {
    return status;
  }
  em::enqueue(stream, [=] {
    std::memset(workspace, 0xFF, workspace_bytes);
    std::vector<double> sums(elements(o.y));
    each_product(o.x, o.w, o.c, o.y, [&](std::int64_t yi, std::int64_t xi, std::int64_t wi) {
      sums[static_cast<std::size_t>(yi)] += em::load(o.x.of(), x, xi) * em::load(o.w.of(), w, wi);
    });
    finish(o.y, y, sums, al, be);
  });
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w_desc, const void* w,
                                           const cudnnTensorDescriptor_t y_desc, const void* dy,
                                           const cudnnConvolutionDescriptor_t c,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           size_t workspace_bytes, const void* beta,
                                           const cudnnTensorDescriptor_t x_desc, void* dx) {
  const Operands o{*as<Tensor>(x_desc), *as<Tensor>(w_desc), *as<Tensor>(y_desc), *as<Convolution>(c)};
  const float al = *static_cast<const float*>(alpha), be = *static_cast<const float*>(beta);
  void* stream = as<Handle>(handle)->stream;
  if (const cudnnStatus_t status =
          check("cudnnConvolutionBackwardData", o, dx, w, dy, algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace,
                workspace_bytes, be, stream)) {
    return status;
  }
  em::enqueue(stream, [=] {
    std::memset(workspace, 0xFF, workspace_bytes);
    std::vector<double> sums(elements(o.x));
    each_product(o.x, o.w, o.c, o.y, [&](std::int64_t yi, std::int64_t xi, std::int64_t wi) {
      sums[static_cast<std::size_t>(xi)] += em::load(o.y.of(), dy, yi) * em::load(o.w.of(), w, wi);
    });
    finish(o.x, dx, sums, al, be);
  });
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x_desc, const void* x,
                                             const cudnnTensorDescriptor_t y_desc, const void* dy,
                                             const cudnnConvolutionDescriptor_t c,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             size_t workspace_bytes, const void* beta,
                                             const cudnnFilterDescriptor_t w_desc, void* dw) {
  const Operands o{*as<Tensor>(x_desc), *as<Tensor>(w_desc), *as<Tensor>(y_desc), *as<Convolution>(c)};
  const float al = *static_cast<const float*>(alpha), be = *static_cast<const float*>(beta);
  void* stream = as<Handle>(handle)->stream;
  if (const cudnnStatus_t status =
          check("cudnnConvolutionBackwardFilter", o, x, dw, dy, algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                workspace, workspace_bytes, be, stream)) {
    return status;
  }
  em::enqueue(stream, [=] {
    std::memset(workspace, 0xFF, workspace_bytes);
    std::vector<double> sums(elements(o.w));
    each_product(o.x, o.w, o.c, o.y, [&](std::int64_t yi, std::int64_t xi, std::int64_t wi) {
      sums[static_cast<std::size_t>(wi)] += em::load(o.y.of(), dy, yi) * em::load(o.x.of(), x, xi);
    });
    finish(o.w, dw, sums, al, be);
  });
  return CUDNN_STATUS_SUCCESS;
}

const char* cudnnGetErrorString(cudnnStatus_t) { return "emulated status of cuDNN"; }
size_t cudnnGetVersion() { return CUDNN_VERSION; }

}  // extern "C"
