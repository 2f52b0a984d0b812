#pragma once

#include <cstdio>
#include <exception>

#include "common/exit_code.h"

namespace ddprun {

// The outermost frame of a program: an exception that nobody caught is a mistake of ours, said in one line.
template <typename Run>
int guarded_main(const char* program, Run&& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: internal error: %s\n", program, error.what());
    return exit_code::kFailure;
  }
}

}  // namespace ddprun
