#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/device/device_context.h"
#include "worker/kernels/kernels.h"

namespace ddprun::engine::gpu {

// One strided batch of products on column-major views, as cuBLAS sees row-major memory.
struct BatchedProduct {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  std::int64_t lda = 0, stride_a = 0;
  const void* b = nullptr;
  std::int64_t ldb = 0, stride_b = 0;
  void* c = nullptr;
  std::int64_t ldc = 0, stride_c = 0;
  std::int64_t batch = 1;
};

// Matrix products on one stream: cuBLASLt with a plan per description, cuBLAS for strided batches.
class Blas {
 public:
  Blas(cuda::DeviceContext& context, DType type, bool tf32);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  void prepare(const GemmDesc& desc);
  // The bias rides in the epilogue for f32; a low-precision caller adds it by itself (the epilogue would want it in the
  // low type). Returns true if the bias was added.
  bool gemm(const GemmDesc& desc, const void* a, const void* b, const float* bias, void* c);
  void batched(const BatchedProduct& product);

 private:
  struct Product;
  Product* find(const GemmDesc& desc);
  bool ok(const char* call, int status);

  cuda::DeviceContext& context_;
  DType type_;
  bool tf32_;
  cublasLtHandle_t lt_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<std::unique_ptr<Product>> products_;
};

cudaDataType_t data_type(DType type);

}  // namespace ddprun::engine::gpu
