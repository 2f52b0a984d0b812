#pragma once

#include <memory>

#include "common/result.h"
#include "worker/kernels/device.h"
#include "worker/kernels/element_kernels.h"
#include "worker/kernels/layer_kernels.h"
#include "worker/kernels/matrix_kernels.h"
#include "worker/kernels/update_kernels.h"

namespace ddprun::engine {

// All arithmetic of one device in one precision; who needs only a part takes that part. All memory is this backend's;
// void* is memory of the activations' type T, Master* of the master type S:
//   reference: T = S = f64;  cpu: T = f32, bf16 or f16, S = f32;  cuda: as cpu.
// Sums, norms, softmax and losses are computed in S (f64 for the scalar loss). Every method is repeatable: the same
// input on the same machine with the same number of threads gives the same bits. On the CPU all but gemm and conv_* do
// so for any number of threads. Device backends queue and return; synchronize() waits.
// `accumulate`: add to the output instead of overwriting it. Null outputs of backward methods are not computed.
// prepare(desc): at plan time; creates library primitives and returns the scratch bytes that the calls with this
// description need. Calls with a prepared description allocate nothing.
class Kernels : public Device, public MatrixKernels, public ElementKernels, public LayerKernels, public UpdateKernels {
 public:
  using LayerKernels::prepare;
  using MatrixKernels::prepare;
};

// Plain loops in double: what all other backends are compared with.
std::unique_ptr<Kernels> make_reference_kernels();
// oneDNN for matrix products and convolutions, own fused loops for the rest; the instruction set (AVX-512, AVX2, plain)
// is chosen when the program runs. precision: f32, bf16 or f16 (the low ones prove semantics and are not faster).
// instruction_set: null for the best, or "avx2", "plain" to go no further (own loops only; for tests).
// Errors: invalid_argument for another type.
Result<std::unique_ptr<Kernels>> make_cpu_kernels(DType precision = DType::f32, const char* instruction_set = nullptr);

}  // namespace ddprun::engine
