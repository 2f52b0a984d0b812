#include "worker/config/options.h"

namespace ddprun::trainer {

namespace {

std::vector<OptionSpec> option_specs() {
  std::vector<OptionSpec> specs = {
      make_option("config", OptionKind::text, "", "FILE", "YAML file of the run (deploy/configs has examples)"),
      make_option("cfg", OptionKind::text, "", "FILE", "the same as --config"),
      make_option("set", OptionKind::text, "", "KEY=VALUE",
                  "replaces one value of the file, e.g. --set data.batch_size=32"),
      make_option("check", OptionKind::flag, "", "", "reads and checks the file, says what it amounts to, then ends"),
      make_option("single", OptionKind::flag, "", "",
                  "trains by itself though srun or mpirun started several copies (each needs files of its own)"),
  };
  specs[2].repeatable = true;
  return specs;
}

}  // namespace

const OptionTable& option_table() {
  static const OptionTable table(
      "trainer",
      "trainer --config FILE [--set KEY=VALUE]...\n"
      "       trainer init | data | eval | predict | generate | tokenize | plot | bench   (each with its own --help)",
      option_specs(), RestPolicy::none);
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
