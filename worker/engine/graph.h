#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/tensor/shape.h"

namespace ddprun::engine {

class Op;

// A tensor in the plan, not memory.
struct Value {
  std::uint32_t id = 0;
  friend bool operator==(Value, Value) = default;
};

// A parameter or buffer by its place in definition order.
struct ParamId {
  std::uint32_t index = 0;
  friend bool operator==(ParamId, ParamId) = default;
  friend auto operator<=>(ParamId, ParamId) = default;
};

enum class Bias : std::uint8_t { no, yes };
// out_in: as torch.nn.Linear stores it. in_out: as Hugging Face's Conv1D (GPT-2) does.
enum class WeightLayout : std::uint8_t { out_in, in_out };

struct ConvSpec {
  std::int64_t out_channels = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
};

struct PoolSpec {
  std::int64_t kernel = 2;
  std::int64_t stride = 2;
  std::int64_t padding = 0;
};

struct CrossEntropySpec {
  double label_smoothing = 0;
  std::int64_t ignore_index = -100;
};

// A parameter or buffer as the graph declares it.
struct ParameterSpec {
  std::string name;  // torchvision's or Hugging Face's
  Shape shape;
  bool buffer = false;         // running statistics: never has a gradient
  bool counter = false;        // buffer of dtype i64 in host memory (num_batches_tracked)
  bool low_precision = false;  // read in the activations' type (matrices); others are always read as masters
};

struct ValueSpec {
  Shape shape;
  // activation: the plan's precision. master: f32 (f64 on the reference backend). others: as they say.
  enum class Type : std::uint8_t { activation, master, f64, i32, u8 } type = Type::activation;
  std::string name;  // inputs only
  bool input = false;
  bool output = false;             // stays readable from forward() to backward()
  std::int64_t low = 0, high = 0;  // i32 inputs: legal values low..high-1, when high > low
  bool has_extra = false;          // one more legal value (ignore_index)
  std::int64_t extra = 0;
};

struct Node {
  std::shared_ptr<const Op> op;
  std::vector<Value> inputs;
  std::vector<Value> outputs;  // outputs[0] is the result, the rest is what backward needs (statistics, indices)
  std::vector<ParamId> params;
  std::int32_t segment = -1;  // checkpointing segment, -1 outside
};

// A model, recorded once: every call checks shapes and returns at once. Activations are NHWC or [rows, features];
// shapes include the batch, so another batch size is another graph over the same parameter names.
// A parameter name used twice with the same shape is the same parameter.
class Graph {
 public:
  // Ops recorded while it lives are recomputed in backward when the plan checkpoints activations.
  class [[nodiscard]] Segment {
   public:
    explicit Segment(Graph& graph) : graph_(&graph) {}
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    ~Segment() { graph_->open_segment_ = -1; }

   private:
    Graph* graph_;
  };

  // f32 inputs are converted to the plan's precision by load(); i32 inputs stay.
  Value input(std::string name, Shape shape, DType dtype);
  // Last extent: in -> out features. Parameters name.weight, name.bias.
  Value linear(Value x, const std::string& name, std::int64_t out, Bias bias = Bias::yes,
               WeightLayout layout = WeightLayout::out_in);
  // [..., in] times the transpose of an existing [out, in] parameter: GPT-2's head.
  Value tied_linear(Value x, const std::string& weight_name);
  Value conv2d(Value x, const std::string& name, ConvSpec spec);  // [N, H, W, C]; weight OIHW; no bias
  // y = relu?(norm(x) + residual?). Parameters name.{weight,bias}, buffers
  // name.{running_mean,running_var,num_batches_tracked}.
  Value batch_norm(Value x, const std::string& name, bool relu = false);
  Value batch_norm_add(Value x, const std::string& name, Value residual, bool relu = true);
  Value layer_norm(Value x, const std::string& name, double eps = 1e-5);
  Value gelu(Value x);  // tanh form
  Value silu(Value x);  // x * sigmoid(x)
  Value relu(Value x);
  Value add(Value a, Value b);
  Value embedding(Value ids, const std::string& weight_name, std::int64_t rows, std::int64_t dim);
  // x [N, T, C] + weight[t], t = 0..T-1, weight [rows, C], T <= rows.
  Value add_positions(Value x, const std::string& weight_name, std::int64_t rows);
  Value causal_attention(Value qkv, std::int64_t heads, double dropout = 0);  // [N, T, 3C] -> [N, T, C]
  Value max_pool(Value x, PoolSpec spec);
  Value mean_pool(Value x);  // [N, H, W, C] -> [N, C]
  Value dropout(Value x, double p);
  // Scalar losses. logits [..., K], targets i32 of the leading extents; mean over kept targets.
  Value cross_entropy(Value logits, Value targets, CrossEntropySpec spec = {});
  Value mse(Value prediction, Value targets);  // mean over all elements

  void mark_output(Value v) { values_[v.id].output = true; }
  void set_loss(Value v) { loss_ = v; }
  Segment checkpoint();

  const Shape& shape(Value v) const { return values_[v.id].shape; }
  const std::vector<ValueSpec>& values() const { return values_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  Value loss() const { return loss_; }

 private:
  Value add_value(Shape shape, ValueSpec::Type type = ValueSpec::Type::activation);
  ParamId parameter(ParameterSpec spec);
  Value record(std::shared_ptr<const Op> op, std::vector<Value> inputs, std::vector<Value> outputs,
               std::vector<ParamId> params = {});
  Value normalise(Value x, const std::string& name, const Value* residual, bool relu);
  void restrict_ids(Value ids, std::int64_t high, const std::int64_t* extra);

  std::vector<ValueSpec> values_;
  std::vector<Node> nodes_;
  std::vector<ParameterSpec> parameters_;
  Value loss_{UINT32_MAX};
  std::int32_t open_segment_ = -1;
  std::int32_t segments_ = 0;
};

// Parameters in the order in which one backward pass completes their gradients: known before the first step and the
// same on every rank. Buffers are not in it; frozen parameters are (Plan::ready_order() leaves them out).
std::vector<ParamId> ready_order(const Graph& graph);

}  // namespace ddprun::engine
