#pragma once

#include <array>
#include <optional>
#include <string>

#include "worker/models/models.h"

namespace ddprun::engine {

// A ResNet's stages; nullopt: the name is of another model.
struct ResnetStages {
  bool bottleneck;
  std::array<int, 4> blocks;
};
std::optional<ResnetStages> resnet_stages(const std::string& name);

// Each records its input and logits; the loss comes afterwards.
void build_mlp(const ModelConfig& config, std::int64_t batch_size, Model& model);
void build_resnet(const ModelConfig& config, std::int64_t batch_size, Model& model);
void build_gpt2(const ModelConfig& config, std::int64_t batch_size, Model& model);

}  // namespace ddprun::engine
