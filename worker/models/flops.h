#pragma once

#include "worker/engine/graph.h"

namespace ddprun::engine {

// Floating point operations of one forward pass over the graph's batch: matrix products, convolutions and attention (of
// which half is masked); a multiplication and an addition are two. A training step takes three times as many.
double forward_flops(const Graph& graph);

}  // namespace ddprun::engine
