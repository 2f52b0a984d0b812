#include "worker/comm/reduce_kernels.h"

#include "worker/comm/reduce_kernel_sets.h"

namespace ddprun::comm {

namespace {

const KernelSet& choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return kKernels_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kKernels_avx2;
#endif
  return kKernels_baseline;
}

const KernelSet& chosen() {
  static const KernelSet& set = choose();
  return set;
}

}  // namespace

void reduce(const ReduceArgs& args) { chosen().reduce(args); }

void narrow(const float* from, void* to, std::size_t count, DType to_type, float scale) {
  chosen().narrow(from, to, count, to_type, scale);
}

void widen(const void* from, float* to, std::size_t count, DType from_type, float scale) {
  chosen().widen(from, to, count, from_type, scale);
}

}  // namespace ddprun::comm
