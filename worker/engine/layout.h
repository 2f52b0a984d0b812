#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/result.h"
#include "worker/engine/graph.h"
#include "worker/engine/plan.h"

namespace ddprun::engine {

// Tensors of a plan by number, before and apart from their memory.
using BufferId = std::uint32_t;
inline constexpr BufferId kNoBuffer = UINT32_MAX;
inline constexpr std::size_t kNowhere = SIZE_MAX;  // offset of a tensor that no step touches

enum class StepKind : std::uint8_t { forward, recompute, backward };

// din[i] of a step whose op cannot add goes to a temporary first.
struct Addition {
  BufferId from = kNoBuffer, to = kNoBuffer;
  std::int64_t count = 0;  // elements
};

// One call of one op: what it reads and writes. Lists are by the node's inputs and outputs; kNoBuffer: not needed.
struct Step {
  StepKind kind = StepKind::forward;
  std::uint32_t node = 0;
  std::vector<BufferId> in, out, din;
  BufferId dout = kNoBuffer;
  BufferId scratch = kNoBuffer;
  std::vector<std::uint8_t> din_adds;                     // by input, 1: add to din
  std::vector<Addition> additions;                        // after the call
  std::vector<std::uint8_t> param_adds, param_completes;  // by the node's parameters, see Frame
};

// The flat schedule of a graph and the place of each tensor in one arena.
struct Layout {
  std::vector<Step> steps;
  std::size_t forward_steps = 0;        // the rest is backward and recomputation
  std::vector<BufferId> value_buffers;  // by value: where forward() leaves it
  std::vector<ParamId> ready_order;
  std::vector<std::size_t> offsets;  // by buffer
  std::size_t arena_bytes = 0;
  std::size_t unplanned_bytes = 0;  // without sharing memory
};

// Decides what is recomputed, who writes and who adds to each gradient, which tensors share memory; makes the library
// primitives ready on the way. Errors: invalid_argument naming a trainable parameter that the loss does not use.
Result<Layout> lay_out(const Graph& graph, const ParameterStore& store, const PlanOptions& options);

}  // namespace ddprun::engine
