#pragma once

#include <cstdio>
#include <functional>
#include <span>
#include <string>

#include "common/options.h"
#include "common/result.h"

namespace ddprun::trainer {

// Prints what --help or --version asks for; false: neither was given.
inline bool print_if_asked(const OptionTable& table, const ParsedOptions& options) {
  const bool help = options.flag("help");
  if (help || options.flag("version")) std::fputs((help ? table.help() : version_text("trainer")).c_str(), stdout);
  return help || options.flag("version");
}

// `trainer NAME ...`: parses, answers --help and --version, then does the work and says what went wrong.
//   misuse: what is wrong with the options as a whole, "" if nothing. Exit codes: 0; 2 wrong use; 1 a failure.
int run_subcommand(const std::string& name, const OptionTable& table, std::span<const std::string> arguments,
                   const std::function<std::string(const ParsedOptions&)>& misuse,
                   const std::function<Result<void>(const ParsedOptions&)>& work);

}  // namespace ddprun::trainer
