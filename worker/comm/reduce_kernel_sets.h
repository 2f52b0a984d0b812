#pragma once

#include "worker/comm/reduce_kernels.h"

// One set of kernels for each instruction set. Only reduce_kernels*.cc include this.
namespace ddprun::comm {

struct KernelSet {
  void (*reduce)(const ReduceArgs&);
  void (*narrow)(const float*, void*, std::size_t, DType, float);
  void (*widen)(const void*, float*, std::size_t, DType, float);
};

extern const KernelSet kKernels_baseline;
extern const KernelSet kKernels_avx2;  // x86-64 only, as the next
extern const KernelSet kKernels_avx512;

}  // namespace ddprun::comm
