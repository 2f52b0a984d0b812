#include "worker/models/builders.h"

namespace ddprun::engine {

namespace {

Value activate(Graph& graph, Activation activation, Value x) {
  switch (activation) {
    case Activation::relu:
      return graph.relu(x);
    case Activation::gelu:
      return graph.gelu(x);
    case Activation::silu:
      return graph.silu(x);
  }
  return x;
}

}  // namespace

// mlp: fc1, activation, fc2, activation, ... fcN. linear: one layer "fc".
void build_mlp(const ModelConfig& config, std::int64_t batch_size, Model& model) {
  Graph& g = model.graph;
  model.input = g.input("input", Shape{batch_size, config.inputs}, DType::f32);
  if (config.name == "linear") {
    model.logits = g.linear(model.input, "fc", config.outputs);
    return;
  }
  Value x = model.input;
  std::size_t layer = 1;
  for (std::int64_t width : config.hidden) {
    x = activate(g, config.activation, g.linear(x, "fc" + std::to_string(layer++), width));
  }
  model.logits = g.linear(x, "fc" + std::to_string(layer), config.outputs);
}

}  // namespace ddprun::engine
