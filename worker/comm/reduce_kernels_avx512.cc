#include "worker/comm/reduce_kernels_impl.h"

namespace ddprun::comm {

const KernelSet kKernels_avx512 = {reduce_here, narrow_here, widen_here};

}  // namespace ddprun::comm
