#pragma once

#include <span>
#include <string>

namespace ddprun::trainer {

// `trainer tokenize`: text files to the token files that data.format tokens reads. Gives the exit code.
int tokenize(std::span<const std::string> arguments);

}  // namespace ddprun::trainer
