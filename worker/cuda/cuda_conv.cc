#include "worker/cuda/cuda_conv.h"

#include <algorithm>
#include <array>

#include "worker/cuda/launch.h"

// The legacy convolution calls are complete in cuDNN 9 and short; the graph API would be the way to fused kernels.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace ddprun::engine::gpu {

static cudnnDataType_t cudnn_type(DType type) {
  switch (type) {
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DType::f16:
      return CUDNN_DATA_HALF;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

static std::size_t rounded(std::size_t size_bytes) { return (size_bytes + 255) / 256 * 256; }

struct Convolutions::Convolution {
  ConvDesc desc;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  cudnnConvolutionFwdAlgo_t forward{};
  cudnnConvolutionBwdDataAlgo_t backward_data{};
  cudnnConvolutionBwdFilterAlgo_t backward_filter{};
  std::size_t filter_bytes = 0;
  std::size_t workspace_bytes = 0;

  ~Convolution() {
    if (x) cudnnDestroyTensorDescriptor(x);
    if (y) cudnnDestroyTensorDescriptor(y);
    if (filter) cudnnDestroyFilterDescriptor(filter);
    if (convolution) cudnnDestroyConvolutionDescriptor(convolution);
  }
  void* workspace(void* scratch) const { return static_cast<char*>(scratch) + filter_bytes; }
};

Convolutions::Convolutions(cuda::DeviceContext& context, DType type, bool tf32)
    : context_(context), type_(type), tf32_(tf32) {
  if (ok("cudnnCreate", cudnnCreate(&handle_))) {
    ok("cudnnSetStream", cudnnSetStream(handle_, static_cast<cudaStream_t>(context_.compute())));
  }
}

Convolutions::~Convolutions() {
  convolutions_.clear();
  if (handle_ && context_.comes_to_rest()) cudnnDestroy(handle_);
}

bool Convolutions::ok(const char* call, int status) {
  return context_.note("cuDNN", call, status, cudnnGetErrorString(static_cast<cudnnStatus_t>(status))) &&
         static_cast<bool>(context_.status());
}

// The first algorithm in cuDNN's order of preference that gives the same bits every time.
template <typename Perf, std::size_t kSize, typename Algorithm>
static bool choose(const std::array<Perf, kSize>& perfs, int count, Algorithm* algorithm) {
  for (int i = 0; i < count; ++i) {
    const Perf& perf = perfs[static_cast<std::size_t>(i)];
    if (perf.status == CUDNN_STATUS_SUCCESS && perf.determinism == CUDNN_DETERMINISTIC) {
      *algorithm = perf.algo;
      return true;
    }
  }
  return false;
}

// The sizes in cuDNN's lists hold for the math type that each entry names; so they are asked for again.
bool Convolutions::choose_algorithms(Convolution& made) {
  int count = 0;
  std::array<cudnnConvolutionFwdAlgoPerf_t, CUDNN_CONVOLUTION_FWD_ALGO_COUNT> forward{};
  ok("cudnnGetConvolutionForwardAlgorithm_v7",
     cudnnGetConvolutionForwardAlgorithm_v7(handle_, made.x, made.filter, made.convolution, made.y,
                                            static_cast<int>(forward.size()), &count, forward.data()));
  bool all = choose(forward, count, &made.forward);
  std::array<cudnnConvolutionBwdDataAlgoPerf_t, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT> data{};
  ok("cudnnGetConvolutionBackwardDataAlgorithm_v7",
     cudnnGetConvolutionBackwardDataAlgorithm_v7(handle_, made.filter, made.y, made.convolution, made.x,
                                                 static_cast<int>(data.size()), &count, data.data()));
  all = choose(data, count, &made.backward_data) && all;
  std::array<cudnnConvolutionBwdFilterAlgoPerf_t, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT> filter{};
  ok("cudnnGetConvolutionBackwardFilterAlgorithm_v7",
     cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle_, made.x, made.y, made.convolution, made.filter,
                                                   static_cast<int>(filter.size()), &count, filter.data()));
  all = choose(filter, count, &made.backward_filter) && all;
  if (!ok("choice of a deterministic algorithm", all ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED)) return false;
  std::array<std::size_t, 3> sizes{};
  ok("cudnnGetConvolutionForwardWorkspaceSize",
     cudnnGetConvolutionForwardWorkspaceSize(handle_, made.x, made.filter, made.convolution, made.y, made.forward,
                                             &sizes[0]));
  ok("cudnnGetConvolutionBackwardDataWorkspaceSize",
     cudnnGetConvolutionBackwardDataWorkspaceSize(handle_, made.filter, made.y, made.convolution, made.x,
                                                  made.backward_data, &sizes[1]));
  ok("cudnnGetConvolutionBackwardFilterWorkspaceSize",
     cudnnGetConvolutionBackwardFilterWorkspaceSize(handle_, made.x, made.y, made.convolution, made.filter,
                                                    made.backward_filter, &sizes[2]));
  made.workspace_bytes = *std::max_element(sizes.begin(), sizes.end());
  return static_cast<bool>(context_.status());
}

Convolutions::Convolution* Convolutions::find(const ConvDesc& desc) {
  for (const auto& known : convolutions_) {
    if (known->desc == desc) return known.get();
  }
  if (!context_.status()) return nullptr;
  auto made = std::make_unique<Convolution>();
  made->desc = desc;
  const cudnnDataType_t type = cudnn_type(type_);
  const auto narrow = [](std::int64_t v) { return static_cast<int>(v); };
  const int pad = narrow(desc.padding), stride = narrow(desc.stride), kernel = narrow(desc.kernel);
  ok("cudnnCreateTensorDescriptor", cudnnCreateTensorDescriptor(&made->x));
  ok("cudnnCreateTensorDescriptor", cudnnCreateTensorDescriptor(&made->y));
  ok("cudnnCreateFilterDescriptor", cudnnCreateFilterDescriptor(&made->filter));
  ok("cudnnCreateConvolutionDescriptor", cudnnCreateConvolutionDescriptor(&made->convolution));
  if (!context_.status()) return nullptr;
  ok("cudnnSetTensor4dDescriptor", cudnnSetTensor4dDescriptor(made->x, CUDNN_TENSOR_NHWC, type, narrow(desc.n),
                                                              narrow(desc.c), narrow(desc.h), narrow(desc.w)));
  ok("cudnnSetTensor4dDescriptor", cudnnSetTensor4dDescriptor(made->y, CUDNN_TENSOR_NHWC, type, narrow(desc.n),
                                                              narrow(desc.oc), narrow(desc.oh()), narrow(desc.ow())));
  ok("cudnnSetFilter4dDescriptor", cudnnSetFilter4dDescriptor(made->filter, type, CUDNN_TENSOR_NHWC, narrow(desc.oc),
                                                              narrow(desc.c), kernel, kernel));
  ok("cudnnSetConvolution2dDescriptor", cudnnSetConvolution2dDescriptor(made->convolution, pad, pad, stride, stride, 1,
                                                                        1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  // CUDNN_FMA_MATH keeps f32 products in f32; CUDNN_TENSOR_OP_MATH allows TF32 for f32 and is native for 16 bits.
  ok("cudnnSetConvolutionMathType",
     cudnnSetConvolutionMathType(made->convolution,
                                 type_ == DType::f32 && !tf32_ ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
  if (!context_.status()) return nullptr;

  if (!choose_algorithms(*made)) return nullptr;
  made->filter_bytes = rounded(static_cast<std::size_t>(desc.oc * desc.c * desc.kernel * desc.kernel) * size_of(type_));
  convolutions_.push_back(std::move(made));
  return convolutions_.back().get();
}

std::size_t Convolutions::prepare(const ConvDesc& desc) {
  const Convolution* convolution = find(desc);
  return convolution ? convolution->filter_bytes + convolution->workspace_bytes : 0;
}

void Convolutions::forward(const ConvDesc& desc, const void* x, const void* weight, void* y, void* scratch) {
  const Convolution* c = find(desc);
  if (!c || !context_.status()) return;
  oihw_to_ohwi(static_cast<Stream>(context_.compute()), type_, desc.oc, desc.c, desc.kernel * desc.kernel, weight,
               scratch);
  const float one = 1.0f, zero = 0.0f;
  ok("cudnnConvolutionForward",
     cudnnConvolutionForward(handle_, &one, c->x, x, c->filter, scratch, c->convolution, c->forward,
                             c->workspace(scratch), c->workspace_bytes, &zero, c->y, y));
}

void Convolutions::backward_data(const ConvDesc& desc, const void* dy, const void* weight, void* dx, bool accumulate,
                                 void* scratch) {
  const Convolution* c = find(desc);
  if (!c || !context_.status()) return;
  oihw_to_ohwi(static_cast<Stream>(context_.compute()), type_, desc.oc, desc.c, desc.kernel * desc.kernel, weight,
               scratch);
  const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  ok("cudnnConvolutionBackwardData",
     cudnnConvolutionBackwardData(handle_, &one, c->filter, scratch, c->y, dy, c->convolution, c->backward_data,
                                  c->workspace(scratch), c->workspace_bytes, &beta, c->x, dx));
}

void Convolutions::backward_weight(const ConvDesc& desc, const void* x, const void* dy, float* dweight, bool accumulate,
                                   void* scratch) {
  const Convolution* c = find(desc);
  if (!c || !context_.status()) return;
  const float one = 1.0f, zero = 0.0f;
  ok("cudnnConvolutionBackwardFilter",
     cudnnConvolutionBackwardFilter(handle_, &one, c->x, x, c->y, dy, c->convolution, c->backward_filter,
                                    c->workspace(scratch), c->workspace_bytes, &zero, c->filter, scratch));
  ohwi_to_oihw_master(static_cast<Stream>(context_.compute()), type_, desc.oc, desc.c, desc.kernel * desc.kernel,
                      scratch, dweight, accumulate);
}

}  // namespace ddprun::engine::gpu
