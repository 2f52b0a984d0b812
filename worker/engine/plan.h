#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/engine/graph.h"
#include "worker/engine/parameter_store.h"
#include "worker/kernels/kernels.h"
#include "worker/tensor/rng.h"

namespace ddprun::engine {

struct PlanOptions {
  bool training = true;  // false: running statistics, no dropout, no backward()
  bool activation_checkpointing = false;
};

struct MemoryReport {
  std::size_t parameter_bytes = 0;  // masters and buffers
  std::size_t gradient_bytes = 0;
  std::size_t activation_bytes = 0;  // the plan's arena: activations, their gradients and scratch at the peak
  std::size_t unplanned_bytes = 0;   // what the same tensors would take without sharing memory
};

struct BackwardOptions {
  double loss_scale = 1;    // gradients are those of loss * loss_scale (1/micro-batches, GradScaler)
  bool accumulate = false;  // add to the gradients in memory (second and later micro-batches); else overwrite
};

// A graph made executable: flat schedule, all memory placed in one arena, all library primitives created. Nothing is
// allocated inside load(), forward() and backward(). One plan per batch size and mode; they share a ParameterStore.
// Thread: the one that owns OpenMP (the main thread); not re-entrant.
class Plan {
 public:
  // Errors: invalid_argument when a trainable parameter's gradient is never produced (named), or the backend lacks
  // memory (with the size wanted).
  static Result<std::unique_ptr<Plan>> create(const Graph& graph, ParameterStore& store, const PlanOptions& options);
  virtual ~Plan() = default;

  // host: the input's elements, row-major, f32 or i32 as declared. Copies. All inputs are loaded before
  // each forward(): their memory serves other tensors afterwards.
  // Errors: invalid_argument for an i32 out of range, with the value, its place and the range.
  virtual Result<void> load(Value input, const void* host) = 0;
  // Runs the model. `key` feeds dropout masks (op is filled in); with the same key the same masks.
  virtual void forward(const RandomKey& key = {}) = 0;
  // Mean loss of the last forward(), before or after backward(). Waits for the device: loss_later() where that
  // matters.
  virtual double loss() = 0;
  // The same for Kernels::finish_read() later. Call it before the next forward().
  virtual Kernels::PendingRead loss_later() = 0;
  // on_ready(p) is called once per trainable parameter when its gradient is complete in its memory, in ready_order().
  // Call after forward(), once (CHECKed). Device backends: the kernels are queued, not done; order later work on their
  // stream.
  virtual void backward(const BackwardOptions& options, const std::function<void(ParamId)>& on_ready) = 0;
  // Copies a value marked as output (logits) to the host as f32, between forward() and backward() (CHECKed: its memory
  // may serve gradients afterwards). `host` has shape(v).count() elements.
  virtual void read(Value output, float* host) = 0;

  virtual std::span<const ParamId> ready_order() const = 0;
  virtual MemoryReport memory() const = 0;
  // One line per step with shapes and offsets, for debugging.
  virtual std::string describe() const = 0;
};

}  // namespace ddprun::engine
