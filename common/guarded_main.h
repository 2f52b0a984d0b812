#pragma once

#include <exception>
#include <string>

#include "common/exit_code.h"
#include "common/log.h"

namespace ddprun {

// The outermost frame of a program: an exception that nobody caught is a mistake of ours, said in one line.
template <typename Run>
int guarded_main(const char* program, Run&& run) {
  int code = exit_code::kFailure;
  try {
    code = run();
  } catch (const std::exception& error) {
    say(std::string(program) + ": internal error: " + error.what());
  }
  log_flush();
  return code;
}

}  // namespace ddprun
