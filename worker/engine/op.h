#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/engine/parameter_store.h"
#include "worker/kernels/kernels.h"
#include "worker/tensor/rng.h"

namespace ddprun::engine {

// Where one op finds its memory; filled once by the plan.
struct OpMemory {
  std::vector<void*> in;               // forward, recompute or backward copies of the inputs
  std::vector<void*> out;              // likewise of all outputs
  void* dout = nullptr;                // gradient of outputs[0]; null for the loss
  std::vector<void*> din;              // gradients of inputs; null: not wanted
  std::vector<std::uint8_t> din_adds;  // 1: add to din
  void* scratch = nullptr;
};

// What an op sees while one of its steps runs.
class Frame {
 public:
  Frame(Kernels& k, const ParameterStore& store) : kernels(k), store_(store) {}

  Kernels& kernels;
  const OpMemory* memory = nullptr;
  const ParamId* params = nullptr;
  const std::uint8_t* param_adds = nullptr;  // 1: an earlier op of this backward pass wrote this gradient already
  bool recompute = false;
  bool accumulate = false;
  double loss_scale = 1;
  RandomKey key;
  const std::function<void(ParamId)>* on_ready = nullptr;
  const std::uint8_t* param_completes = nullptr;  // 1: no later op of the pass adds to this gradient

  void* in(std::size_t i) const { return memory->in[i]; }
  void* out(std::size_t i = 0) const { return memory->out[i]; }
  const void* dout() const { return memory->dout; }
  void* din(std::size_t i) const { return memory->din[i]; }
  bool din_adds(std::size_t i) const { return memory->din_adds[i] != 0; }
  void* scratch() const { return memory->scratch; }

  Master* master(std::size_t i) const { return store_[params[i]].data; }
  // A matrix in the type in which the kernels read it.
  const void* weight(std::size_t i) const {
    const Parameter& p = store_[params[i]];
    return p.mirror != nullptr ? p.mirror : p.data;
  }
  Master* gradient(std::size_t i) const { return store_[params[i]].trainable ? store_[params[i]].gradient : nullptr; }
  bool adds(std::size_t i) const { return accumulate || param_adds[i] != 0; }
  // The gradient of parameter i is complete as far as this op is concerned.
  void ready(std::size_t i) const {
    if (on_ready != nullptr && param_completes[i] != 0 && store_[params[i]].trainable) (*on_ready)(params[i]);
  }

 private:
  const ParameterStore& store_;
};

struct PrepareInfo {
  bool training = true;
  std::vector<std::uint8_t> din_wanted;
  std::vector<std::uint8_t> din_adds;
};

// One kind of operation with its sizes; immutable, shared by all plans of a graph.
class Op {
 public:
  // Memory that backward may write a gradient of input `input` over, when nobody needs it later.
  struct InPlace {
    std::size_t input;
    bool over_dout;  // else over the input `source`
    std::size_t source = 0;
  };

  virtual ~Op() = default;
  virtual const char* kind() const = 0;
  // Bit i: backward reads input i / output i.
  virtual std::uint32_t backward_reads_inputs() const = 0;
  virtual std::uint32_t backward_reads_outputs() const = 0;
  virtual bool differentiable(std::size_t input) const { return input == 0; }
  // backward can add to din(input) by itself; otherwise the plan adds through a temporary.
  virtual bool can_add(std::size_t) const { return false; }
  virtual bool forward_in_place() const { return false; }  // outputs[0] may lie over inputs[0]
  virtual std::vector<InPlace> backward_in_place() const { return {}; }
  virtual bool is_add() const { return false; }  // its gradient is its output's, unchanged

  // Makes primitives ready; returns scratch bytes for forward and backward.
  virtual std::size_t prepare(Kernels&, const PrepareInfo&) const { return 0; }
  virtual void forward(const Frame& frame) const = 0;
  virtual void forward_eval(const Frame& frame) const { forward(frame); }
  // Calls frame.ready(i) for its parameters from the last to the first (bias before weight), as ready_order() says.
  virtual void backward(const Frame& frame) const = 0;
};

}  // namespace ddprun::engine
