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

// mlp: fc1, norm1?, activation, dropout?, fc2, ... fcN. linear: one layer "fc".
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
    const std::string number = std::to_string(layer++);
    x = g.linear(x, "fc" + number, width);
    if (config.norm == Norm::layer) x = g.layer_norm(x, "norm" + number);
    if (config.norm == Norm::batch) x = g.batch_norm(x, "norm" + number);
    x = activate(g, config.activation, x);
    if (config.dropout > 0) x = g.dropout(x, config.dropout);
  }
  model.logits = g.linear(x, "fc" + std::to_string(layer), config.outputs);
}

}  // namespace ddprun::engine
