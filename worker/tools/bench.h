#pragma once

#include <span>
#include <string>

namespace ddprun::comm {

// `trainer bench all-reduce|all-gather|reduce-scatter|broadcast [options]`: `arguments` begins with the collective.
// Every rank runs it; rank 0 prints nccl-tests' columns (or JSON) to stdout. Returns the exit code: 0; 1 if a result
// was wrong or the communicator failed; 2 usage.
int bench_main(std::span<const std::string> arguments);

}  // namespace ddprun::comm
