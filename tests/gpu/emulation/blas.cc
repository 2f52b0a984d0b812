// The cuBLASLt and cuBLAS calls of worker/cuda/cuda_blas.cc: column-major products in plain loops.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <cstring>

#include "tests/gpu/emulation/device.h"

namespace em = ddprun::emulated;

namespace {

struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Layout {
  cudaDataType_t type;
  std::int64_t rows, columns, ld;
};
struct Preference {
  std::size_t workspace = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // the documented default
};
// What an algorithm's opaque bytes hold here: what it was chosen for.
struct Chosen {
  std::uint32_t alignment[4];
  const void* operation;
};
static_assert(sizeof(Chosen) <= sizeof(cublasLtMatmulAlgo_t));

struct Blas {
  void* stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

// As much scratch as a product says it needs; it is overwritten, so that nothing else may live there.
constexpr std::size_t kScratch = 4096;

cublasStatus_t call(const char* name, void* stream = nullptr, bool creates = false) {
  return static_cast<cublasStatus_t>(em::called(name, stream, creates));
}

bool type_of(cudaDataType_t type, em::Type* out) {
  if (type != CUDA_R_32F && type != CUDA_R_16BF && type != CUDA_R_16F) return false;
  *out = type == CUDA_R_32F ? em::Type::f32 : type == CUDA_R_16BF ? em::Type::bf16 : em::Type::f16;
  return true;
}

bool compute_fits(cublasComputeType_t compute, em::Type in, em::Type out) {
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) return in == em::Type::f32 && out == em::Type::f32;
  return compute == CUBLAS_COMPUTE_32F && (out == in || out == em::Type::f32);
}

struct Matrix {
  em::Type type;
  const void* memory;
  std::int64_t rows, columns, ld, stride;
  std::size_t reach(std::int64_t batch) const {
    return static_cast<std::size_t>((batch - 1) * stride + (columns - 1) * ld + rows) * em::bytes_of(type);
  }
};

// TF32 keeps 10 bits of the mantissa.
float tf32(double value) {
  auto narrow = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrow, 4);
  bits = (bits + 0xFFF + ((bits >> 13) & 1u)) & ~0x1FFFu;
  std::memcpy(&narrow, &bits, 4);
  return narrow;
}

void multiply(bool ta, bool tb, const Matrix& a, const Matrix& b, const Matrix& c, void* out, std::int64_t batch,
              float alpha, float beta, const float* bias, bool short_mantissa) {
  const std::int64_t k = ta ? a.rows : a.columns;
  for (std::int64_t s = 0; s < batch; ++s) {
    for (std::int64_t j = 0; j < c.columns; ++j) {
      for (std::int64_t i = 0; i < c.rows; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          double x = em::load(a.type, a.memory, s * a.stride + (ta ? i * a.ld + l : l * a.ld + i));
          double y = em::load(b.type, b.memory, s * b.stride + (tb ? l * b.ld + j : j * b.ld + l));
          if (short_mantissa) {
            x = static_cast<double>(tf32(x));
            y = static_cast<double>(tf32(y));
          }
          sum += x * y;
        }
        const std::int64_t at = s * c.stride + j * c.ld + i;
        double value = static_cast<double>(alpha) * sum;
        if (beta != 0) value += static_cast<double>(beta) * em::load(c.type, out, at);
        if (bias != nullptr) value += static_cast<double>(bias[i]);
        em::store(c.type, out, at, value);
      }
    }
  }
}

bool aligned(const void* memory, std::uint32_t bytes) { return reinterpret_cast<std::uintptr_t>(memory) % bytes == 0; }

std::string words(const char* name, std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb, em::Type in,
                  em::Type out, float beta, const char* more) {
  return std::string(name) + " m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" + std::to_string(k) +
         (ta ? " T" : " N") + (tb ? "T " : "N ") + em::name_of(in) + "->" + em::name_of(out) +
         (beta != 0 ? " beta=1" : " beta=0") + more;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (const cublasStatus_t status = call("cublasLtCreate", nullptr, true)) return status;
  *handle = reinterpret_cast<cublasLtHandle_t>(new Blas);
  em::count("cublasLt handle", 1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<Blas*>(handle);
  em::count("cublasLt handle", -1);
  return call("cublasLtDestroy", nullptr, true);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t scale) {
  if (const cublasStatus_t status = call("cublasLtMatmulDescCreate", nullptr, true)) return status;
  if (scale != CUDA_R_32F) em::violated("alpha and beta are floats, the scale type is another");
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation{compute, scale});
  em::count("cublasLtMatmulDesc", 1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation*>(operation);
  em::count("cublasLtMatmulDesc", -1);
  return call("cublasLtMatmulDescDestroy", nullptr, true);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  if (const cublasStatus_t status = call("cublasLtMatmulDescSetAttribute")) return status;
  auto* op = reinterpret_cast<Operation*>(operation);
  const auto take = [&](auto& into) {
    if (size != sizeof into) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&into, value, size);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(op->transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(op->transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(op->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(op->bias);
    default:
      em::violated("an attribute of a product that the emulation does not know");
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  if (const cublasStatus_t status = call("cublasLtMatrixLayoutCreate", nullptr, true)) return status;
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), ld});
  em::count("cublasLtMatrixLayout", 1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<const Layout*>(layout);
  em::count("cublasLtMatrixLayout", -1);
  return call("cublasLtMatrixLayoutDestroy", nullptr, true);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  if (const cublasStatus_t status = call("cublasLtMatmulPreferenceCreate", nullptr, true)) return status;
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  em::count("cublasLtMatmulPreference", 1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  em::count("cublasLtMatmulPreference", -1);
  return call("cublasLtMatmulPreferenceDestroy", nullptr, true);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t size) {
  if (const cublasStatus_t status = call("cublasLtMatmulPreferenceSetAttribute")) return status;
  auto* p = reinterpret_cast<Preference*>(preference);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    if (size != sizeof p->workspace) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&p->workspace, value, size);
    return CUBLAS_STATUS_SUCCESS;
  }
  const int which = static_cast<int>(attribute) - static_cast<int>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  if (which < 0 || which > 3 || size != 4) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&p->alignment[which], value, 4);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                                              cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  if (const cublasStatus_t status = call("cublasLtMatmulAlgoGetHeuristic", nullptr, true)) return status;
  const auto* op = reinterpret_cast<Operation*>(operation);
  const auto* a = reinterpret_cast<Layout*>(a_layout);
  const auto* b = reinterpret_cast<Layout*>(b_layout);
  const auto* c = reinterpret_cast<Layout*>(c_layout);
  const auto* p = reinterpret_cast<Preference*>(preference);
  const bool ta = op->transpose_a == CUBLAS_OP_T, tb = op->transpose_b == CUBLAS_OP_T;
  const std::int64_t m = ta ? a->columns : a->rows, k = ta ? a->rows : a->columns;
  const std::int64_t bk = tb ? b->columns : b->rows, n = tb ? b->rows : b->columns;
  em::Type in{}, in_b{}, out{};
  if (!type_of(a->type, &in) || !type_of(b->type, &in_b) || !type_of(c->type, &out) || in != in_b ||
      !compute_fits(op->compute, in, out) || c_layout != d_layout || wanted < 1) {
    em::violated("a product of types that cuBLASLt has not");
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (k != bk || c->rows != m || c->columns != n || a->ld < a->rows || b->ld < b->rows || c->ld < c->rows) {
    em::violated("layouts of a product that do not fit each other");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (op->epilogue == CUBLASLT_EPILOGUE_BIAS && op->bias == nullptr) {
    em::violated("an algorithm was chosen before the bias was known: its alignment counts");
  }
  if (p->workspace < kScratch) return CUBLAS_STATUS_NOT_SUPPORTED;
  Chosen chosen{};
  std::copy(std::begin(p->alignment), std::end(p->alignment), std::begin(chosen.alignment));
  chosen.operation = op;
  results[0] = {};
  std::memcpy(&results[0].algo, &chosen, sizeof chosen);
  results[0].workspaceSize = kScratch;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a_memory,
                              cublasLtMatrixLayout_t a_layout, const void* b_memory, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c_memory, cublasLtMatrixLayout_t c_layout, void* d_memory,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (const cublasStatus_t status = call("cublasLtMatmul", stream)) return status;
  const Operation op = *reinterpret_cast<Operation*>(operation);
  const Layout la = *reinterpret_cast<Layout*>(a_layout), lb = *reinterpret_cast<Layout*>(b_layout),
               lc = *reinterpret_cast<Layout*>(c_layout);
  Chosen chosen{};
  std::memcpy(&chosen, algorithm, sizeof chosen);
  if (chosen.operation != operation || c_layout != d_layout || c_memory != d_memory) {
    em::violated("a product with an algorithm or an output of another one");
  }
  const void* operands[] = {a_memory, b_memory, c_memory, d_memory};
  for (int i = 0; i < 4; ++i) {
    if (!aligned(operands[i], chosen.alignment[i]))
      em::violated(
          "an operand of a product lies at a place less aligned "
          "than promised");
  }
  em::Type in{}, out{};
  type_of(la.type, &in);
  type_of(lc.type, &out);
  const Matrix a{in, a_memory, la.rows, la.columns, la.ld, 0}, b{in, b_memory, lb.rows, lb.columns, lb.ld, 0},
      c{out, c_memory, lc.rows, lc.columns, lc.ld, 0};
  const bool with_bias = op.epilogue == CUBLASLT_EPILOGUE_BIAS;
  bool good = em::reaches(a_memory, a.reach(1), "A of a product") &&
              em::reaches(b_memory, b.reach(1), "B of a product") &&
              em::reaches(d_memory, c.reach(1), "the output of a product") &&
              em::reaches(workspace, std::min(workspace_bytes, kScratch), "the workspace of a product");
  if (with_bias) good = em::reaches(op.bias, static_cast<std::size_t>(c.rows) * 4, "the bias of a product") && good;
  if (!good || workspace_bytes < kScratch) return CUBLAS_STATUS_INVALID_VALUE;
  const float al = *static_cast<const float*>(alpha), be = *static_cast<const float*>(beta);
  const bool ta = op.transpose_a == CUBLAS_OP_T, tb = op.transpose_b == CUBLAS_OP_T;
  const bool short_mantissa = op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  em::descriptors().push_back(words("gemm", c.rows, c.columns, ta ? a.rows : a.columns, ta, tb, in, out, be,
                                    with_bias        ? " bias"
                                    : short_mantissa ? " tf32"
                                                     : ""));
  em::enqueue(stream, [=] {
    std::memset(workspace, 0xFF, kScratch);
    multiply(ta, tb, a, b, c, d_memory, 1, al, be, with_bias ? static_cast<const float*>(op.bias) : nullptr,
             short_mantissa);
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (const cublasStatus_t status = call("cublasCreate", nullptr, true)) return status;
  *handle = reinterpret_cast<cublasHandle_t>(new Blas);
  em::count("cublas handle", 1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete reinterpret_cast<Blas*>(handle);
  em::count("cublas handle", -1);
  return call("cublasDestroy", nullptr, true);
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  auto* blas = reinterpret_cast<Blas*>(handle);
  blas->stream = stream;
  blas->workspace = nullptr;  // as documented: back to the default workspace pool
  return call("cublasSetStream", stream);
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return call("cublasSetMathMode"); }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t size) {
  auto* blas = reinterpret_cast<Blas*>(handle);
  blas->workspace = workspace;
  blas->workspace_bytes = size;
  em::reaches(workspace, size, "cublasSetWorkspace");
  return call("cublasSetWorkspace");
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void* alpha, const void* a_memory, cudaDataType a_type,
                                          int lda, long long stride_a, const void* b_memory, cudaDataType b_type,
                                          int ldb, long long stride_b, const void* beta, void* c_memory,
                                          cudaDataType c_type, int ldc, long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  auto* blas = reinterpret_cast<Blas*>(handle);
  if (const cublasStatus_t status = call("cublasGemmStridedBatchedEx", blas->stream)) return status;
  if (blas->workspace == nullptr) em::violated("cuBLAS would allocate a workspace by itself");
  em::Type in{}, in_b{}, out{};
  if (!type_of(a_type, &in) || !type_of(b_type, &in_b) || !type_of(c_type, &out) || in != in_b || out != in ||
      !compute_fits(compute, in, out)) {
    em::violated("a batched product of types that cuBLAS has not");
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
  const Matrix a{in, a_memory, ta ? k : m, ta ? m : k, lda, stride_a},
      b{in, b_memory, tb ? n : k, tb ? k : n, ldb, stride_b}, c{out, c_memory, m, n, ldc, stride_c};
  if (lda < a.rows || ldb < b.rows || ldc < c.rows || m < 1 || n < 1 || k < 1 || batch < 1) {
    em::violated("a batched product with a leading dimension below its rows");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (const void* operand : {a_memory, b_memory, static_cast<const void*>(c_memory)}) {
    if (!aligned(operand, static_cast<std::uint32_t>(em::bytes_of(in)))) em::violated("a misaligned batched product");
  }
  if (!em::reaches(a_memory, a.reach(batch), "A of a batched product") ||
      !em::reaches(b_memory, b.reach(batch), "B of a batched product") ||
      !em::reaches(c_memory, c.reach(batch), "the output of a batched product")) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float al = *static_cast<const float*>(alpha), be = *static_cast<const float*>(beta);
  const bool short_mantissa = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  em::descriptors().push_back(words("batched", m, n, k, ta, tb, in, out, be, short_mantissa ? " tf32" : ""));
  em::enqueue(blas->stream, [=, workspace = blas->workspace] {
    if (workspace != nullptr) std::memset(workspace, 0xFF, kScratch);
    multiply(ta, tb, a, b, c, c_memory, batch, al, be, nullptr, short_mantissa);
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType, int* value) {
  *value = 0;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "the requested functionality is not supported"
                                               : "emulated status of cuBLAS";
}

}  // extern "C"
