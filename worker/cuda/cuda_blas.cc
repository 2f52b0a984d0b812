#include "worker/cuda/cuda_blas.h"

#include <cuda_runtime.h>

namespace ddprun::engine::gpu {

// NVIDIA recommends 32 MiB for Hopper (cuBLAS documentation, "cublasSetWorkspace").
static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
static constexpr std::uint32_t kAlignment = 64;

cudaDataType_t data_type(DType type) {
  switch (type) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

struct Blas::Product {
  GemmDesc desc;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  ~Product() {
    for (auto layout : {a, b, c}) {
      if (layout) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation) cublasLtMatmulDescDestroy(operation);
  }
};

Blas::Blas(cuda::DeviceContext& context, DType type, bool tf32) : context_(context), type_(type), tf32_(tf32) {
  ok("cublasLtCreate", cublasLtCreate(&lt_));
  if (ok("cublasCreate", cublasCreate(&blas_))) {
    ok("cublasSetStream", cublasSetStream(blas_, static_cast<cudaStream_t>(context_.compute())));
    ok("cublasSetMathMode", cublasSetMathMode(blas_, tf32_ ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH));
  }
  workspace_ = context_.allocate(kWorkspaceBytes, "cuBLAS workspace");
  if (blas_ && workspace_) ok("cublasSetWorkspace", cublasSetWorkspace(blas_, workspace_, kWorkspaceBytes));
}

Blas::~Blas() {
  products_.clear();
  if (!context_.comes_to_rest()) return;
  if (blas_) cublasDestroy(blas_);
  if (lt_) cublasLtDestroy(lt_);
  if (workspace_) context_.release(workspace_);
}

bool Blas::ok(const char* call, int status) {
  return context_.note("cuBLAS", call, status, cublasGetStatusString(static_cast<cublasStatus_t>(status))) &&
         static_cast<bool>(context_.status());
}

// Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T: b comes first, m and n change places.
Blas::Product* Blas::find(const GemmDesc& desc) {
  for (const auto& product : products_) {
    if (product->desc == desc) return product.get();
  }
  if (!context_.status()) return nullptr;
  auto product = std::make_unique<Product>();
  product->desc = desc;
  const cublasComputeType_t compute = type_ == DType::f32 && tf32_ ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  if (!ok("cublasLtMatmulDescCreate", cublasLtMatmulDescCreate(&product->operation, compute, CUDA_R_32F)))
    return nullptr;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    ok("cublasLtMatmulDescSetAttribute",
       cublasLtMatmulDescSetAttribute(product->operation, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, desc.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, desc.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (desc.bias && type_ == DType::f32) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    // The choice of an algorithm may look at it; gemm() puts the right one in.
    const void* some_bias = workspace_;
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, some_bias);
  }

  const cudaDataType_t in = data_type(type_);
  const cudaDataType_t out = desc.master_out ? CUDA_R_32F : in;
  const auto layout = [&](cublasLtMatrixLayout_t* created, cudaDataType_t type, std::int64_t rows,
                          std::int64_t columns) {
    ok("cublasLtMatrixLayoutCreate", cublasLtMatrixLayoutCreate(created, type, static_cast<std::uint64_t>(rows),
                                                                static_cast<std::uint64_t>(columns), rows));
  };
  if (desc.transpose_b) {
    layout(&product->a, in, desc.k, desc.n);
  } else {
    layout(&product->a, in, desc.n, desc.k);
  }
  if (desc.transpose_a) {
    layout(&product->b, in, desc.m, desc.k);
  } else {
    layout(&product->b, in, desc.k, desc.m);
  }
  layout(&product->c, out, desc.n, desc.m);
  if (!context_.status()) return nullptr;

  cublasLtMatmulPreference_t preference = nullptr;
  if (!ok("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&preference))) return nullptr;
  ok("cublasLtMatmulPreferenceSetAttribute",
     cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                                          sizeof(kWorkspaceBytes)));
  // Without these cuBLAS takes all matrices for aligned to 256 bytes; ours are to 64 (buckets, arenas).
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    ok("cublasLtMatmulPreferenceSetAttribute",
       cublasLtMatmulPreferenceSetAttribute(preference, attribute, &kAlignment, sizeof(kAlignment)));
  }
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const int status = cublasLtMatmulAlgoGetHeuristic(lt_, product->operation, product->a, product->b, product->c,
                                                    product->c, preference, 1, &best, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (!ok("cublasLtMatmulAlgoGetHeuristic", status)) return nullptr;
  if (!ok("cublasLtMatmulAlgoGetHeuristic", found > 0 ? 0 : CUBLAS_STATUS_NOT_SUPPORTED)) return nullptr;
  product->algorithm = best.algo;
  products_.push_back(std::move(product));
  return products_.back().get();
}

void Blas::prepare(const GemmDesc& desc) {
  if (desc.m > 0 && desc.n > 0 && desc.k > 0) find(desc);
}

bool Blas::gemm(const GemmDesc& desc, const void* a, const void* b, const float* bias, void* c) {
  Product* product = find(desc);
  if (!product || !context_.status()) return true;
  const bool in_epilogue = desc.bias && type_ == DType::f32;
  if (in_epilogue) {
    ok("cublasLtMatmulDescSetAttribute",
       cublasLtMatmulDescSetAttribute(product->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
  }
  const float alpha = 1.0f, beta = desc.accumulate ? 1.0f : 0.0f;
  ok("cublasLtMatmul",
     cublasLtMatmul(lt_, product->operation, &alpha, b, product->a, a, product->b, &beta, c, product->c, c, product->c,
                    &product->algorithm, workspace_, kWorkspaceBytes, static_cast<cudaStream_t>(context_.compute())));
  return in_epilogue || !desc.bias;
}

void Blas::batched(const BatchedProduct& p) {
  if (!context_.status() || p.m == 0 || p.n == 0 || p.batch == 0) return;
  const float alpha = 1.0f, beta = 0.0f;
  const cudaDataType_t type = data_type(type_);
  const cublasComputeType_t compute = type_ == DType::f32 && tf32_ ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  ok("cublasGemmStridedBatchedEx",
     cublasGemmStridedBatchedEx(blas_, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                                p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(p.m), static_cast<int>(p.n),
                                static_cast<int>(p.k), &alpha, p.a, type, static_cast<int>(p.lda), p.stride_a, p.b,
                                type, static_cast<int>(p.ldb), p.stride_b, &beta, p.c, type, static_cast<int>(p.ldc),
                                p.stride_c, static_cast<int>(p.batch), compute, CUBLAS_GEMM_DEFAULT));
}

}  // namespace ddprun::engine::gpu
