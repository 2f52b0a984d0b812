#pragma once

#include <string>

#include "worker/models/models.h"

namespace ddprun::engine {

// Each records its input and logits; the loss comes afterwards.
void build_mlp(const ModelConfig& config, std::int64_t batch_size, Model& model);
void build_resnet(const ModelConfig& config, std::int64_t batch_size, Model& model);
void build_gpt2(const ModelConfig& config, std::int64_t batch_size, Model& model);

}  // namespace ddprun::engine
