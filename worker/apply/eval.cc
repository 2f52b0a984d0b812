#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "worker/apply/commands.h"
#include "worker/apply/loaded_model.h"
#include "worker/ranks/batch_wait.h"
#include "worker/report/confusion.h"
#include "worker/run/evaluate.h"
#include "worker/run/open_data.h"
#include "worker/run/validation.h"
#include "worker/tools/subcommand.h"

namespace ddprun::trainer {
namespace {

OptionTable make_table() {
  std::vector<OptionSpec> specs = model_options();
  specs.push_back(make_option("data", OptionKind::text, "", "PATH",
                              "evaluate these data instead of data.validation (of the same format)"));
  specs.push_back(make_option("targets", OptionKind::text, "", "PATH", "idx, npy: the targets of --data"));
  specs.push_back(make_option("confusion", OptionKind::text, "", "FOLDER",
                              "writes confusion.csv and confusion.svg: how often each class was taken for each"));
  specs.push_back(make_option("json", OptionKind::flag, "", "", "prints one JSON object"));
  return OptionTable("trainer eval", "trainer eval --config FILE --weights PATH [--data PATH]", std::move(specs),
                     RestPolicy::none);
}

void print(const std::vector<Figure>& figures, const EvalCounts& counts, bool as_json) {
  nlohmann::ordered_json json;
  for (const Figure& figure : figures) {
    json[figure.name] = figure.value;
    if (!as_json) std::printf("%-10s %.6g\n", figure.name.c_str(), figure.value);
  }
  json["samples"] = counts.samples;
  if (as_json) {
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%-10s %lld\n", "samples", static_cast<long long>(counts.samples));
  }
}

Result<void> run(const ParsedOptions& options) {
  auto config = config_of(options);
  if (!config) return std::move(config).error();
  if (options.given("data")) {
    config->data.validation = {options.text("data"), options.text("targets")};
    config->data.validation_share = 0;
  }
  if (!config->data.has_validation()) {
    return Error(Errc::invalid_argument, "the configuration has no data.validation: give --data PATH");
  }
  auto data = open_data(*config);
  if (!data) return std::move(data).error();
  auto model = load_model(*config, options.text("weights"));
  if (!model) return std::move(model).error();
  data::LoaderOptions reading;
  reading.batch_size = config->data.batch_size;
  reading.num_workers = config->data.reading.num_workers;
  reading.timeout = config->data.reading.timeout;
  auto loader = data::Loader::create(data->validation, reading);
  if (!loader) return std::move(loader).error();
  SlowRead slow(0, std::chrono::seconds(5));
  const EvalControl control{[] { return false; }, std::chrono::seconds(1), slow, options.given("confusion")};
  auto counts = evaluate_share(*data->validation, **loader, *model->plans, config->loss, 0, 1, control);
  if (!counts) return std::move(counts).error();
  const data::SampleSpec& spec = data->validation->spec();
  print(figures_of(*counts, spec), *counts, options.flag("json"));
  if (!options.given("confusion")) return {};
  if (counts->confusion.empty()) {
    return Error(Errc::invalid_argument, "--confusion needs one class a sample, these data have none");
  }
  const ConfusionMatrix matrix{class_names_of(spec.class_names, spec.classes), counts->confusion};
  auto written = write_confusion_files(options.text("confusion"), matrix);
  if (!written) return std::move(written).error().with_context("--confusion");
  return {};
}

}  // namespace

int eval_main(std::span<const std::string> arguments) {
  const auto misuse = [](const ParsedOptions& options) -> std::string {
    const bool complete = options.given("config") && options.given("weights");
    return complete ? "" : "needs --config FILE and --weights PATH (see --help)";
  };
  return run_subcommand("eval", make_table(), arguments, misuse, run);
}

}  // namespace ddprun::trainer
