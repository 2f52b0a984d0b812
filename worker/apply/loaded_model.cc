#include "worker/apply/loaded_model.h"

#include <filesystem>

#include "worker/base/file_bytes.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/writer.h"
#include "worker/models/models.h"
#include "worker/run/weights.h"

namespace ddprun::trainer {

Result<std::string> find_weights(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    if (std::filesystem::exists(path, ignored)) return path;
    return Error(Errc::not_found, "--weights: " + path + " is not there");
  }
  std::vector<std::string> folders = {path, path + "/best", path + "/latest"};
  if (auto steps = checkpoint::steps_in(path)) {
    for (auto step = steps->rbegin(); step != steps->rend(); ++step) {
      folders.push_back(path + "/" + checkpoint::folder_name(*step));
    }
  }
  for (const std::string& folder : folders) {
    for (const char* name : {checkpoint::kAverageFile, checkpoint::kModelFile}) {
      if (std::filesystem::exists(folder + "/" + name, ignored)) return folder + "/" + name;
    }
  }
  return Error(Errc::not_found, "--weights: " + path + " has no " + checkpoint::kModelFile +
                                    " and no checkpoint (best, latest, step-N)");
}

Result<std::string> read_text(const std::string& path) {
  auto bytes = read_file(path, std::size_t{64} << 20, FileKind::any);
  if (!bytes) return std::move(bytes).error();
  return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

Result<LoadedModel> load_model(const TrainerConfig& config, const std::string& weights) {
  LoadedModel loaded;
  auto file_name = find_weights(weights);
  if (!file_name) return std::move(file_name).error();
  loaded.weights = *file_name;
  auto file = checkpoint::SafetensorsFile::open(loaded.weights);
  if (!file) return std::move(file).error().with_context("--weights");
  auto kernels = engine::make_cpu_kernels(config.precision.dtype);
  if (!kernels) return std::move(kernels).error();
  loaded.kernels = std::move(*kernels);
  auto built = engine::build_model(config.model, config.loss, 1);
  if (!built) return std::move(built).error().with_context("model");
  auto store = engine::ParameterStore::create(built->graph, *loaded.kernels);
  if (!store) return std::move(store).error();
  loaded.store = std::move(*store);
  auto read = load_weights(*file, loaded.weights, *loaded.store);
  if (!read) return std::move(read).error().with_context("--weights");
  loaded.plans = std::make_unique<Plans>(config.model, config.loss, *loaded.store, false);
  return loaded;
}

std::vector<OptionSpec> model_options() {
  std::vector<OptionSpec> specs = {
      make_option("config", OptionKind::text, "", "FILE", "the YAML file that the model was trained with"),
      make_option("set", OptionKind::text, "", "KEY=VALUE", "replaces one value of the file"),
      make_option("weights", OptionKind::text, "", "PATH",
                  "a safetensors file, a checkpoint, or a folder of them (best, else latest)")};
  specs[1].repeatable = true;
  return specs;
}

Result<TrainerConfig> config_of(const ParsedOptions& options) {
  return load_config(options.text("config"), options.texts("set"));
}

}  // namespace ddprun::trainer
