#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/result.h"
#include "worker/engine/graph.h"
#include "worker/tensor/shape.h"

namespace ddprun::engine {

class Kernels;
struct UpdateChunk;

struct Parameter {
  ParamId id;
  std::string name;
  Shape shape;
  DType dtype = DType::f32;  // of `data` and `gradient`: f32, on the reference backend f64; counters i64
  bool trainable = true;     // false: frozen, or a buffer; then it has no gradient
  bool buffer = false;       // running statistics
  bool on_host = false;      // counters live in host memory on every backend
  void* data = nullptr;      // device memory of the store, 64-byte aligned, contiguous row-major
  void* mirror = nullptr;    // the same in the activations' low-precision type, where that is what kernels read
  void* gradient = nullptr;  // not owned, or the store's own after allocate_gradients()

  std::size_t count() const { return static_cast<std::size_t>(shape.count()); }
  std::size_t size_bytes() const { return count() * size_of(dtype); }
};

// The model's parameters and buffers in one arena; plans for training, evaluation and other batch sizes share it.
// Order: definition order of the graph. Padding between parameters stays zero.
class ParameterStore {
 public:
  // frozen: glob patterns ("layer1.*") of parameters that get no gradient. Memory is zeroed.
  // Errors: invalid_argument if a pattern matches nothing, naming it.
  static Result<std::unique_ptr<ParameterStore>> create(const Graph& graph, Kernels& kernels,
                                                        std::span<const std::string> frozen = {});
  ~ParameterStore();
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  std::span<const Parameter> parameters() const { return parameters_; }  // buffers included
  const Parameter& operator[](ParamId id) const { return parameters_[id.index]; }
  std::optional<ParamId> find(std::string_view name) const;

  // Binds gradient memory (parameter's dtype, count() elements, 64-byte aligned, must outlive the store's use), for
  // example a slice of a Reducer's bucket. Before the first backward(); plans read it anew each time.
  void set_gradient(ParamId id, void* gradient);
  // One zeroed arena of the store's own for all trainable parameters that have none yet.
  void allocate_gradients();

  // Copies to and from host memory in the parameter's own dtype; write() refreshes the mirror.
  void read(ParamId id, void* host) const;
  void write(ParamId id, const void* host);
  // f32 on the host side whatever the backend's type is.
  std::vector<float> read_f32(ParamId id) const;
  void write_f32(ParamId id, std::span<const float> values);
  std::vector<float> read_gradient_f32(ParamId id) const;

  // Low-precision copies follow the masters. Optimizers do this in their pass; needed after foreign writes to `data`
  // (a broadcast).
  void refresh_mirrors();

  // All trainable parameters with their gradients in pieces of at most 32 Ki elements, the unit of work of one thread
  // in an optimizer's pass. CHECKs that gradients are bound. Valid until the next set_gradient().
  std::span<const UpdateChunk> chunks() const;

  std::size_t parameter_bytes() const { return arena_bytes_; }
  std::size_t gradient_bytes() const;
  std::int64_t trainable_count() const;  // elements
  Kernels& kernels() const { return kernels_; }

 private:
  explicit ParameterStore(Kernels& kernels);

  Kernels& kernels_;
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
  std::vector<std::int64_t> counters_;
  mutable std::vector<UpdateChunk> chunks_;  // made when first asked for
  void* arena_ = nullptr;
  void* mirror_arena_ = nullptr;
  void* gradient_arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
};

}  // namespace ddprun::engine
