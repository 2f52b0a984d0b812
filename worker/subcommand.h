#pragma once

#include <functional>
#include <span>
#include <string>

#include "common/options.h"
#include "common/result.h"

namespace ddprun::trainer {

// `trainer NAME ...`: parses, answers --help, then does the work and says what went wrong.
//   misuse: what is wrong with the options as a whole, "" if nothing. Exit codes: 0; 2 wrong use; 1 a failure.
int run_subcommand(const std::string& name, const OptionTable& table, std::span<const std::string> arguments,
                   const std::function<std::string(const ParsedOptions&)>& misuse,
                   const std::function<Result<void>(const ParsedOptions&)>& work);

}  // namespace ddprun::trainer
