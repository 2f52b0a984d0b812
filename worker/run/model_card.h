#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "worker/data/dataset.h"
#include "worker/models/models.h"

namespace ddprun::trainer {

// Beside the weights in each checkpoint: what model they are of. For gpt2 it is Hugging Face's, so that
// AutoModelForCausalLM.from_pretrained(folder) works as it stands; others have our own keys.
inline constexpr const char* kModelConfigFile = "config.json";
std::string model_config_json(const engine::ModelConfig& model, const data::SampleSpec& data);

// Our own config.json: sizes into `model`, which has the kind from the configuration already. The names of the classes,
// if the data had some. Errors: malformed; invalid_argument when it is of another model.
Result<std::vector<std::string>> complete_from_json(const std::string& text, const std::string& name_for_errors,
                                                    engine::ModelConfig& model);

// The gpt2 of a folder with Hugging Face's config.json. Errors: not_found; malformed; invalid_argument for another
// architecture.
Result<engine::ModelConfig> gpt2_from_json(const std::string& text, const std::string& name_for_errors);

}  // namespace ddprun::trainer
