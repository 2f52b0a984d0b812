#include "worker/device/backend.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <fmt/format.h>

#include "worker/cuda/cuda_kernels.h"
#include "worker/cuda/device_api_real.h"
#include "worker/cuda/launch.h"
#include "worker/cuda/nccl_api_real.h"

namespace ddprun::cuda {
namespace {

class Backend final : public DeviceBackend {
 public:
  std::string versions() const override {
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    const auto cudnn = static_cast<int>(cudnnGetVersion());
    int major = 0, minor = 0, patch = 0;
    cublasGetProperty(MAJOR_VERSION, &major);
    cublasGetProperty(MINOR_VERSION, &minor);
    cublasGetProperty(PATCH_LEVEL, &patch);
    return fmt::format("CUDA {}.{}, cuBLAS {}.{}.{}, cuDNN {}.{}.{}", runtime / 1000, runtime % 1000 / 10, major, minor,
                       patch, cudnn / 10000, cudnn % 10000 / 100, cudnn % 100);
  }

  Result<int> device_count() override {
    int count = 0;
    const int status = api_->device_count(&count);
    if (status == DeviceApi::kSuccess) return count;
    // No rank is known here yet.
    return Error(Errc::system, describe_failure(-1, "CUDA", "cudaGetDeviceCount", status, api_->error_text(status)));
  }

  Result<DeviceContext*> open(int rank, int local_rank) override {
    if (context_) return context_.get();
    auto context = DeviceContext::open(*api_, rank, local_rank);
    if (!context) return std::move(context).error();
    context_ = std::move(context).value();
    return context_.get();
  }

  NcclApi& nccl() override { return *nccl_; }

  Result<std::unique_ptr<engine::Kernels>> make_kernels(engine::DType precision, bool tf32) override {
    if (!context_) return Error(Errc::invalid_argument, "CUDA kernels were asked for before a device was opened");
    return engine::make_cuda_kernels(*context_, {precision, tf32});
  }

  void cast(engine::DType from, engine::DType to, const void* in, void* out, std::int64_t count) override {
    if (!context_ || !context_->status()) return;
    engine::gpu::convert(static_cast<engine::gpu::Stream>(context_->compute()), from, to, in, out, count);
    context_->note_launches("cast of gradients");
  }

 private:
  std::unique_ptr<DeviceApi> api_ = make_device_api();
  std::unique_ptr<NcclApi> nccl_ = make_nccl_api();
  std::unique_ptr<DeviceContext> context_;
};

}  // namespace
}  // namespace ddprun::cuda

extern "C" __attribute__((visibility("default"))) ddprun::cuda::DeviceBackend* ddprun_cuda_backend_v3() {
  // Lives as long as the process: destroying a context while the CUDA runtime unloads is undefined.
  static auto* backend = new ddprun::cuda::Backend;
  return backend;
}
