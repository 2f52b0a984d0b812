#pragma once

#include <vector>

#include "worker/engine/parameter_store.h"
#include "worker/kernels/kernels.h"

namespace ddprun::optim {

// All trainable parameters cut into pieces of at most 32 Ki elements: the unit of work of one thread. States are filled
// by the optimizer. CHECKs that gradients are bound.
std::vector<engine::UpdateChunk> parameter_chunks(const engine::ParameterStore& store);

}  // namespace ddprun::optim
