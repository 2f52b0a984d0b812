#include <cstring>

#include "worker/kernels/cpu_loops.h"

namespace ddprun::engine {

const Loops& choose_loops(const char* limit) {
  const bool plain = limit != nullptr && std::strcmp(limit, "plain") == 0;
  const bool no_512 = plain || (limit != nullptr && std::strcmp(limit, "avx2") == 0);
  if (!no_512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd")) {
    return loops_avx512();
  }
  if (!plain && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
    return loops_avx2();
  }
  return loops_plain();
}

}  // namespace ddprun::engine
