#pragma once

#include <span>
#include <string>

namespace ddprun::trainer {

// `trainer data`, `trainer eval`, `trainer generate` and `trainer predict`. Each gives the exit code: 0; 2 wrong use; 1
// a failure.
int data_main(std::span<const std::string> arguments);
int eval_main(std::span<const std::string> arguments);
int generate_main(std::span<const std::string> arguments);
int predict_main(std::span<const std::string> arguments);

}  // namespace ddprun::trainer
