#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "worker/apply/commands.h"
#include "worker/apply/loaded_model.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/report/confusion.h"
#include "worker/report/metrics.h"
#include "worker/run/model_card.h"
#include "worker/run/open_data.h"
#include "worker/tools/subcommand.h"

namespace ddprun::trainer {
namespace {

OptionTable make_table() {
  std::vector<OptionSpec> specs = model_options();
  specs.push_back(make_option("output", OptionKind::text, "", "FILE", "writes the answers there, else to stdout"));
  specs.back().short_name = 'o';
  specs.push_back(
      make_option("all", OptionKind::flag, "", "", "classes: the probability of each, not the likeliest alone"));
  return OptionTable("trainer predict", "trainer predict --config FILE --weights PATH INPUT...", std::move(specs),
                     RestPolicy::list);
}

// What the model takes and how its classes are called: config.json beside the weights says it; else the training data.
Result<std::vector<std::string>> complete_model(TrainerConfig& config, const std::string& weights) {
  const std::string card = (std::filesystem::path(weights).parent_path() / kModelConfigFile).string();
  if (auto text = read_text(card)) {
    auto names = complete_from_json(*text, card, config.model);
    if (!names) return std::move(names).error();
    config.outputs_given = true;
    return names;
  }
  auto data = open_data(config);
  if (!data) return std::move(data).error().with_context("without config.json beside the weights the data are needed");
  return data->train->spec().class_names;
}

// The files that were asked for; of folders all that are in them, in the order of their names.
Result<std::vector<std::string>> input_files(std::span<const std::string> given) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const std::string& path : given) {
    std::error_code failed;
    if (!fs::is_directory(path, failed)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (fs::recursive_directory_iterator it(path, failed), end; !failed && it != end; it.increment(failed)) {
      std::error_code ignored;
      if (it->is_regular_file(ignored) && data::is_image_name(it->path())) inside.push_back(it->path().string());
    }
    if (failed) return Error(Errc::system, fmt::format("cannot read {}: {}", path, failed.message()));
    if (inside.empty()) return Error(Errc::invalid_argument, path + ": no .jpg, .jpeg or .png file in it");
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

Result<std::vector<std::shared_ptr<const data::Dataset>>> open_inputs(const TrainerConfig& config,
                                                                      std::span<const std::string> given) {
  auto files = input_files(given);
  if (!files) return std::move(files).error();
  data::DatasetOptions options = dataset_options(config, /*training=*/false);
  options.unlabeled = true;
  options.inputs = config.model.inputs;
  std::vector<std::shared_ptr<const data::Dataset>> all;
  const bool pictures = options.format == "image_folder";
  for (std::size_t i = 0; i < (pictures ? 1 : files->size()); ++i) {
    options.paths = {(*files)[i], ""};
    if (pictures) options.files = *files;
    auto dataset = data::open_dataset(options);
    if (!dataset) return std::move(dataset).error();
    all.push_back(std::move(*dataset));
  }
  return all;
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Rows of answers as csv.
class Answers {
 public:
  Answers(bool classes, bool all, std::vector<std::string> names)
      : classes_(classes), all_(all), names_(std::move(names)) {}

  std::string heading(std::int64_t outputs) const {
    std::string text = "sample";
    if (classes_ && !all_) return text + ",class,probability\n";
    for (std::int64_t i = 0; i < outputs; ++i) {
      text += "," + (classes_ ? quoted(names_[static_cast<std::size_t>(i)]) : fmt::format("output{}", i + 1));
    }
    return text + "\n";
  }

  std::string row(const std::string& sample, std::span<const float> outputs) const {
    std::string text = quoted(sample);
    if (!classes_) {
      for (const float value : outputs) text += fmt::format(",{:.7g}", value);
      return text + "\n";
    }
    const float largest = *std::max_element(outputs.begin(), outputs.end());
    double sum = 0;
    for (const float value : outputs) sum += std::exp(static_cast<double>(value) - largest);
    if (all_) {
      for (const float value : outputs) {
        text += fmt::format(",{:.6g}", std::exp(static_cast<double>(value) - largest) / sum);
      }
      return text + "\n";
    }
    const auto answer = std::max_element(outputs.begin(), outputs.end()) - outputs.begin();
    return text + fmt::format(",{},{:.6g}\n", quoted(names_[static_cast<std::size_t>(answer)]), 1 / sum);
  }

 private:
  bool classes_, all_;
  std::vector<std::string> names_;
};

Result<void> answer(const TrainerConfig& config, const std::shared_ptr<const data::Dataset>& dataset, Plans& plans,
                    const Answers& answers, std::string& out) {
  data::LoaderOptions reading;
  reading.batch_size = std::min(config.data.batch_size, dataset->size());
  reading.num_workers = config.data.reading.num_workers;
  reading.timeout = config.data.reading.timeout;
  auto loader = data::Loader::create(dataset, reading);
  if (!loader) return std::move(loader).error();
  std::vector<std::int64_t> indices(static_cast<std::size_t>(dataset->size()));
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
  auto begun = (*loader)->begin_epoch(0, std::move(indices));
  if (!begun) return begun;
  std::vector<float> outputs;
  for (;;) {
    auto batch = (*loader)->next();
    if (!batch) return std::move(batch).error();
    if (*batch == nullptr) return {};
    const data::Batch& b = **batch;
    auto planned = plans.get(b.size, /*training=*/false);
    if (!planned) return std::move(planned).error();
    engine::Plan& plan = *(*planned)->plan;
    const engine::Model& model = (*planned)->model;
    // The loss of made-up targets is computed too, and nobody reads it.
    const std::vector<float> targets(static_cast<std::size_t>(model.graph.shape(model.target).count()), 0.0F);
    auto loaded = plan.load(model.input, b.inputs);
    if (loaded) loaded = plan.load(model.target, targets.data());
    if (!loaded) return loaded;
    plan.forward();
    const engine::Shape& shape = model.graph.shape(model.logits);
    outputs.resize(static_cast<std::size_t>(shape.count()));
    plan.read(model.logits, outputs.data());
    const auto width = static_cast<std::size_t>(shape.back());
    for (std::size_t i = 0; i < b.indices.size(); ++i) {
      out += answers.row(dataset->name_of(b.indices[i]), std::span(outputs).subspan(i * width, width));
    }
  }
}

Result<void> run(const ParsedOptions& options) {
  auto config = config_of(options);
  if (!config) return std::move(config).error();
  if (config->model.name == "gpt2") {
    return Error(Errc::invalid_argument, "gpt2 goes on with a text: `trainer generate`");
  }
  auto weights = find_weights(options.text("weights"));
  if (!weights) return std::move(weights).error();
  auto names = complete_model(*config, *weights);
  if (!names) return std::move(names).error();
  auto model = load_model(*config, *weights);
  if (!model) return std::move(model).error();
  auto inputs = open_inputs(*config, options.rest());
  if (!inputs) return std::move(inputs).error();
  const Answers answers(config->loss.kind == engine::LossKind::cross_entropy, options.flag("all"),
                        class_names_of(*names, config->model.outputs));
  std::string text = answers.heading(config->model.outputs);
  for (const auto& dataset : *inputs) {
    auto done = answer(*config, dataset, *model->plans, answers, text);
    if (!done) return done;
  }
  if (!options.given("output")) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return {};
  }
  auto file = LineFile::open(options.text("output"), 0);
  if (!file) return std::move(file).error().with_context("--output");
  return file->append(text);
}

}  // namespace

int predict_main(std::span<const std::string> arguments) {
  const auto misuse = [](const ParsedOptions& options) -> std::string {
    const bool complete = options.given("config") && options.given("weights") && !options.rest().empty();
    return complete ? "" : "needs --config FILE, --weights PATH and at least one input (see --help)";
  };
  return run_subcommand("predict", make_table(), arguments, misuse, run);
}

}  // namespace ddprun::trainer
