#include <cstdio>

#include "worker/apply/commands.h"
#include "worker/apply/loaded_model.h"
#include "worker/run/open_data.h"
#include "worker/run/preview.h"
#include "worker/tools/subcommand.h"

namespace ddprun::trainer {
namespace {

OptionTable make_table() {
  std::vector<OptionSpec> specs = {
      make_option("config", OptionKind::text, "", "FILE",
                  "the YAML file whose data.train and data.validation are shown"),
      make_option("set", OptionKind::text, "", "KEY=VALUE", "replaces one value of the file")};
  specs[1].repeatable = true;
  return OptionTable("trainer data", "trainer data --config FILE", std::move(specs), RestPolicy::none);
}

Result<void> run(const ParsedOptions& options) {
  auto config = config_of(options);
  if (!config) return std::move(config).error();
  auto data = open_data(*config);
  if (!data) return std::move(data).error();
  const auto show = [&config](const char* name, const data::Dataset* dataset) {
    if (dataset == nullptr) return;
    std::printf("%s\n", name);
    for (const std::string& line : describe_data(*dataset, config->train.seed)) std::printf("  %s\n", line.c_str());
  };
  show("data.train", data->train.get());
  show("data.validation", data->validation.get());
  return {};
}

}  // namespace

int data_main(std::span<const std::string> arguments) {
  const auto misuse = [](const ParsedOptions& options) -> std::string {
    return options.given("config") ? "" : "needs --config FILE (see --help)";
  };
  return run_subcommand("data", make_table(), arguments, misuse, run);
}

}  // namespace ddprun::trainer
