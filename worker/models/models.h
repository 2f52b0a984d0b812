#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/engine/graph.h"
#include "worker/engine/parameter_store.h"

namespace ddprun::engine {

enum class LossKind : std::uint8_t { cross_entropy, mse };

struct LossConfig {
  LossKind kind = LossKind::cross_entropy;
  double label_smoothing = 0;
  std::int64_t ignore_index = -100;
};

enum class Stem : std::uint8_t {
  imagenet,  // 7x7 stride 2 and max pool, as torchvision
  small,     // 3x3 stride 1, no pool: 32x32 and 28x28 images
};

enum class Norm : std::uint8_t { none, layer, batch };

enum class Activation : std::uint8_t { relu, gelu, silu };

enum class Init : std::uint8_t { standard, zeros };

struct Gpt2Config {
  std::int64_t vocabulary = 50257;
  std::int64_t context = 1024;          // rows of the position table
  std::int64_t sequence_length = 1024;  // tokens per sample, <= context
  std::int64_t layers = 12, heads = 12, embedding = 768;
  double dropout = 0;
};

// One struct for all models; which fields count is said beside them.
struct ModelConfig {
  std::string name = {};  // linear | mlp | resnet18, 34, 50, 101, 152 | gpt2
  Init init = Init::standard;
  std::int64_t inputs = 0;                   // linear, mlp: features per sample
  std::int64_t outputs = 10;                 // linear, mlp, resnet: classes or regression outputs
  std::vector<std::int64_t> hidden = {};     // mlp: widths of the hidden layers
  Activation activation = Activation::relu;  // mlp: between its layers
  Norm norm = Norm::none;                    // mlp: before each activation
  double dropout = 0;                        // mlp: after each activation
  Stem stem = Stem::imagenet;                // resnet
  std::int64_t width = 64;                   // resnet: channels of the first stage
  std::int64_t channels = 3;                 // resnet
  std::int64_t image_size = 224;             // resnet: height and width
  Gpt2Config gpt2 = {};
};

// A recorded model for one batch size.
struct Model {
  Graph graph;
  Value input;   // linear, mlp: f32 [N, inputs]; resnet: f32 [N, H, W, C]; gpt2: i32 [N, T]
  Value target;  // cross_entropy: i32 [N] (gpt2 [N, T]); mse: f32 [N, outputs]
  Value logits;  // readable: [N, outputs] (gpt2 [N, T, vocabulary])
  Value loss;
};

// Errors: invalid_argument naming the field that does not fit.
Result<Model> build_model(const ModelConfig& config, const LossConfig& loss, std::int64_t batch_size);

// Sets every parameter and buffer as the same model in PyTorch has it after torch.manual_seed(seed) and construction,
// to the bit (see Generator): torch.nn defaults for linear and mlp, torchvision's for resnet, Hugging Face's
// GPT2LMHeadModel for gpt2. Init::zeros: all parameters 0, norms 1.
void initialise(const ModelConfig& config, ParameterStore& store, std::uint64_t seed);

}  // namespace ddprun::engine
