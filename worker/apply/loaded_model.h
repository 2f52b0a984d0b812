#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/result.h"
#include "worker/config/config.h"
#include "worker/engine/parameter_store.h"
#include "worker/kernels/kernels.h"
#include "worker/run/plans.h"

namespace ddprun::trainer {

// --weights: a safetensors file, a checkpoint, or a folder of checkpoints, of which "best", else "latest", else the
// newest is taken, with averaged parameters where there are some. The path of the file. Errors: not_found.
Result<std::string> find_weights(const std::string& path);

// The text of a small file. Errors: read_file()'s.
Result<std::string> read_text(const std::string& path);

// A trained model on the CPU, for answers. Members in the order in which they are made.
struct LoadedModel {
  std::unique_ptr<engine::Kernels> kernels;
  std::unique_ptr<engine::ParameterStore> store;
  std::unique_ptr<Plans> plans;
  std::string weights;  // the file they are from
};
// config: its model has all sizes. Errors: begin with --weights.
Result<LoadedModel> load_model(const TrainerConfig& config, const std::string& weights);

// Options that `trainer eval` and `trainer predict` have in common: --config, --set, --weights.
std::vector<OptionSpec> model_options();
// --config and --set, read. Errors: one sentence.
Result<TrainerConfig> config_of(const ParsedOptions& options);

}  // namespace ddprun::trainer
