#include "worker/tools/subcommand.h"

#include <cstdio>
#include <optional>

#include "common/exit_code.h"

namespace ddprun::trainer {

int run_subcommand(const std::string& name, const OptionTable& table, std::span<const std::string> arguments,
                   const std::function<std::string(const ParsedOptions&)>& misuse,
                   const std::function<Result<void>(const ParsedOptions&)>& work) {
  const auto complain = [&name](const std::string& message, int code) {
    std::fprintf(stderr, "trainer %s: %s\n", name.c_str(), message.c_str());
    return code;
  };
  auto options = table.parse(arguments, [](const std::string&) { return std::nullopt; });
  if (!options) return complain(options.error().message(), exit_code::kUsage);
  if (print_if_asked(table, *options)) return exit_code::kOk;
  if (const std::string wrong = misuse(*options); !wrong.empty()) return complain(wrong, exit_code::kUsage);
  auto done = work(*options);
  return done ? exit_code::kOk : complain(done.error().message(), exit_code::kFailure);
}

}  // namespace ddprun::trainer
