#include "worker/models/flops.h"

#include <string_view>

#include "worker/engine/op.h"

namespace ddprun::engine {

double forward_flops(const Graph& graph) {
  double sum = 0;
  for (const Node& node : graph.nodes()) {
    const std::string_view kind = node.op->kind();
    const Shape& out = graph.shape(node.outputs[0]);
    if (kind == "linear" || kind == "conv2d") {
      // Each weight is used once for each output position.
      const double weights = static_cast<double>(graph.parameters()[node.params[0].index].shape.count());
      sum += 2 * weights * static_cast<double>(out.count() / out.back());
    } else if (kind == "causal_attention") {  // [N, T, C]: scores and values, 2 N T T C each
      sum += 2 * static_cast<double>(out.count()) * static_cast<double>(out[1]);
    }
  }
  return sum;
}

}  // namespace ddprun::engine
