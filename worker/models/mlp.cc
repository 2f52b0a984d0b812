#include "worker/models/builders.h"

namespace ddprun::engine {

// mlp: fc1, relu, fc2, relu, ... fcN. linear: one layer "fc".
void build_mlp(const ModelConfig& config, std::int64_t batch_size, Model& model) {
  Graph& g = model.graph;
  model.input = g.input("input", Shape{batch_size, config.inputs}, DType::f32);
  if (config.name == "linear") {
    model.logits = g.linear(model.input, "fc", config.outputs);
    return;
  }
  Value x = model.input;
  std::size_t layer = 1;
  for (std::int64_t width : config.hidden) x = g.relu(g.linear(x, "fc" + std::to_string(layer++), width));
  model.logits = g.linear(x, "fc" + std::to_string(layer), config.outputs);
}

}  // namespace ddprun::engine
