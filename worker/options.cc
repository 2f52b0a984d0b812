#include "worker/options.h"

namespace ddprun::trainer {

const OptionTable& option_table() {
  static const OptionTable table(
      "trainer", "trainer --config FILE [--set KEY=VALUE]...",
      {
          {.name = "config", .value_name = "FILE", .help = "YAML file of the run (deploy/configs has examples)"},
          {.name = "cfg", .value_name = "FILE", .help = "the same as --config"},
          {.name = "set",
           .value_name = "KEY=VALUE",
           .help = "replaces one value of the file, e.g. --set data.batch_size=32",
           .repeatable = true},
          {.name = "check", .kind = OptionKind::flag, .help = "reads and checks the file, then ends"},
      },
      RestPolicy::none);
  return table;
}

Result<TrainerConfig> config_from_options(const ParsedOptions& options) {
  const bool both = options.given("config") && options.given("cfg");
  const std::string& path = options.given("cfg") ? options.text("cfg") : options.text("config");
  if (both || path.empty()) {
    return Error(Errc::invalid_argument, both ? "--config and --cfg are the same option: give one"
                                              : "--config FILE is missing (see --help; deploy/configs has examples)");
  }
  return load_config(path, options.texts("set"));
}

}  // namespace ddprun::trainer
