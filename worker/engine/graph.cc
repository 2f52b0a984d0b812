#include "worker/engine/graph.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "worker/engine/ops/ops.h"

namespace ddprun::engine {
namespace {

std::int64_t leading(const Shape& shape) { return shape.count() / std::max<std::int64_t>(shape.back(), 1); }

Shape with_last(const Shape& shape, std::int64_t last) {
  std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents.back() = last;
  return Shape(std::span<const std::int64_t>(extents));
}

}  // namespace

Value Graph::add_value(Shape shape, ValueSpec::Type type) {
  ValueSpec spec;
  spec.shape = shape;
  spec.type = type;
  values_.push_back(std::move(spec));
  return {static_cast<std::uint32_t>(values_.size() - 1)};
}

ParamId Graph::parameter(ParameterSpec spec) {
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name != spec.name) continue;
    CHECK(parameters_[i].shape == spec.shape, "a parameter name is used with two shapes");
    return {i};
  }
  parameters_.push_back(std::move(spec));
  return {static_cast<std::uint32_t>(parameters_.size() - 1)};
}

Value Graph::record(std::shared_ptr<const Op> op, std::vector<Value> inputs, std::vector<Value> outputs,
                    std::vector<ParamId> params) {
  const Value result = outputs[0];
  nodes_.push_back({std::move(op), std::move(inputs), std::move(outputs), std::move(params), open_segment_});
  return result;
}

Graph::Segment Graph::checkpoint() {
  CHECK(open_segment_ < 0, "checkpoint segments do not nest");
  open_segment_ = segments_++;
  return Segment(*this);
}

Value Graph::input(std::string name, Shape shape, DType dtype) {
  CHECK(dtype == DType::f32 || dtype == DType::i32, "inputs are f32 or i32");
  const Value v = add_value(shape, dtype == DType::i32 ? ValueSpec::Type::i32 : ValueSpec::Type::activation);
  values_[v.id].name = std::move(name);
  values_[v.id].input = true;
  return v;
}

void Graph::restrict_ids(Value ids, std::int64_t high, const std::int64_t* extra) {
  ValueSpec& spec = values_[ids.id];
  CHECK(spec.type == ValueSpec::Type::i32, "ids must be i32");
  spec.high = spec.high == 0 ? high : std::min(spec.high, high);
  if (extra != nullptr) {
    spec.has_extra = true;
    spec.extra = *extra;
  }
}

Value Graph::linear(Value x, const std::string& name, std::int64_t out, Bias bias, WeightLayout layout) {
  const Shape in = shape(x);
  const bool in_out = layout == WeightLayout::in_out;
  const std::int64_t width = in.back();
  std::vector<ParamId> params = {parameter(
      {.name = name + ".weight", .shape = in_out ? Shape{width, out} : Shape{out, width}, .low_precision = true})};
  if (bias == Bias::yes) params.push_back(parameter({.name = name + ".bias", .shape = Shape{out}}));
  return record(make_linear(leading(in), width, out, bias == Bias::yes, in_out), {x}, {add_value(with_last(in, out))},
                std::move(params));
}

Value Graph::tied_linear(Value x, const std::string& weight_name) {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const ParameterSpec& p) { return p.name == weight_name; });
  CHECK(found != parameters_.end(), "tied_linear needs a parameter that exists");
  const Shape in = shape(x);
  CHECK(found->shape.rank() == 2 && found->shape[1] == in.back(), "tied_linear: widths differ");
  const std::int64_t out = found->shape[0];
  const ParamId weight{static_cast<std::uint32_t>(found - parameters_.begin())};
  return record(make_linear(leading(in), in.back(), out, false, false), {x}, {add_value(with_last(in, out))}, {weight});
}

Value Graph::conv2d(Value x, const std::string& name, ConvSpec spec) {
  const Shape in = shape(x);
  CHECK(in.rank() == 4, "conv2d takes [N, H, W, C]");
  const ConvDesc desc{.n = in[0],
                      .h = in[1],
                      .w = in[2],
                      .c = in[3],
                      .oc = spec.out_channels,
                      .kernel = spec.kernel,
                      .stride = spec.stride,
                      .padding = spec.padding};
  CHECK(desc.h + 2 * desc.padding >= desc.kernel && desc.w + 2 * desc.padding >= desc.kernel,
        "conv2d: image smaller than the kernel");
  const ParamId weight = parameter({.name = name + ".weight",
                                    .shape = Shape{spec.out_channels, in[3], spec.kernel, spec.kernel},
                                    .low_precision = true});
  return record(make_conv(desc), {x}, {add_value(Shape{in[0], desc.oh(), desc.ow(), spec.out_channels})}, {weight});
}

Value Graph::normalise(Value x, const std::string& name, const Value* residual, bool relu) {
  const Shape in = shape(x);
  const std::int64_t channels = in.back();
  const BatchNormDesc desc{.rows = leading(in), .channels = channels, .relu = relu, .residual = residual != nullptr};
  std::vector<ParamId> params = {
      parameter({.name = name + ".weight", .shape = Shape{channels}}),
      parameter({.name = name + ".bias", .shape = Shape{channels}}),
      parameter({.name = name + ".running_mean", .shape = Shape{channels}, .buffer = true}),
      parameter({.name = name + ".running_var", .shape = Shape{channels}, .buffer = true}),
      parameter({.name = name + ".num_batches_tracked", .shape = Shape{}, .buffer = true, .counter = true})};
  std::vector<Value> inputs = {x};
  if (residual != nullptr) {
    CHECK(shape(*residual) == in, "batch_norm_add: shapes differ");
    inputs.push_back(*residual);
  }
  return record(make_batch_norm(desc), std::move(inputs),
                {add_value(in), add_value(Shape{channels}, ValueSpec::Type::master),
                 add_value(Shape{channels}, ValueSpec::Type::master)},
                std::move(params));
}

Value Graph::batch_norm(Value x, const std::string& name, bool relu) { return normalise(x, name, nullptr, relu); }
Value Graph::batch_norm_add(Value x, const std::string& name, Value residual, bool relu) {
  return normalise(x, name, &residual, relu);
}

Value Graph::layer_norm(Value x, const std::string& name, double eps) {
  const Shape in = shape(x);
  const std::int64_t rows = leading(in);
  std::vector<ParamId> params = {parameter({.name = name + ".weight", .shape = Shape{in.back()}}),
                                 parameter({.name = name + ".bias", .shape = Shape{in.back()}})};
  return record(
      make_layer_norm({.rows = rows, .columns = in.back(), .eps = eps}), {x},
      {add_value(in), add_value(Shape{rows}, ValueSpec::Type::master), add_value(Shape{rows}, ValueSpec::Type::master)},
      std::move(params));
}

Value Graph::gelu(Value x) { return record(make_gelu(shape(x).count()), {x}, {add_value(shape(x))}); }
Value Graph::silu(Value x) { return record(make_silu(shape(x).count()), {x}, {add_value(shape(x))}); }
Value Graph::relu(Value x) { return record(make_relu(shape(x).count()), {x}, {add_value(shape(x))}); }

Value Graph::add(Value a, Value b) {
  CHECK(shape(a) == shape(b), "add: shapes differ");
  CHECK(!(a == b), "add: twice the same value");
  return record(make_add(shape(a).count()), {a, b}, {add_value(shape(a))});
}

Value Graph::dropout(Value x, double p) {
  CHECK(p >= 0 && p < 1, "dropout: probability not in [0, 1)");
  if (p == 0) return x;
  return record(make_dropout(shape(x).count(), p), {x}, {add_value(shape(x))});
}

Value Graph::embedding(Value ids, const std::string& weight_name, std::int64_t rows, std::int64_t dim) {
  restrict_ids(ids, rows, nullptr);
  const ParamId weight = parameter({.name = weight_name, .shape = Shape{rows, dim}, .low_precision = true});
  std::vector<std::int64_t> extents(shape(ids).extents().begin(), shape(ids).extents().end());
  extents.push_back(dim);
  return record(make_embedding(shape(ids).count(), dim, rows), {ids},
                {add_value(Shape(std::span<const std::int64_t>(extents)))}, {weight});
}

Value Graph::add_positions(Value x, const std::string& weight_name, std::int64_t rows) {
  const Shape in = shape(x);
  CHECK(in.rank() == 3 && in[1] <= rows, "add_positions takes [N, T, C] with T <= rows");
  const ParamId weight = parameter({.name = weight_name, .shape = Shape{rows, in[2]}, .low_precision = true});
  return record(make_add_positions(in[0], in[1], in[2], rows), {x}, {add_value(in)}, {weight});
}

Value Graph::causal_attention(Value qkv, std::int64_t heads, double dropout) {
  const Shape in = shape(qkv);
  CHECK(in.rank() == 3 && heads > 0 && in[2] % (3 * heads) == 0, "causal_attention takes [N, T, 3 * heads * head_dim]");
  const std::int64_t head_dim = in[2] / 3 / heads;
  const AttentionDesc desc{.batch = in[0], .tokens = in[1], .heads = heads, .head_dim = head_dim, .dropout = dropout};
  return record(
      make_attention(desc), {qkv},
      {add_value(Shape{in[0], in[1], in[2] / 3}), add_value(Shape{in[0], heads, in[1]}, ValueSpec::Type::master)});
}

Value Graph::max_pool(Value x, PoolSpec spec) {
  const Shape in = shape(x);
  CHECK(in.rank() == 4, "max_pool takes [N, H, W, C]");
  CHECK(spec.kernel * spec.kernel <= 256 && spec.padding < spec.kernel, "max_pool: window too large or all padding");
  const PoolDesc desc{.n = in[0],
                      .h = in[1],
                      .w = in[2],
                      .c = in[3],
                      .kernel = spec.kernel,
                      .stride = spec.stride,
                      .padding = spec.padding};
  const Shape out{in[0], desc.oh(), desc.ow(), in[3]};
  return record(make_max_pool(desc), {x}, {add_value(out), add_value(out, ValueSpec::Type::u8)});
}

Value Graph::mean_pool(Value x) {
  const Shape in = shape(x);
  CHECK(in.rank() == 4, "mean_pool takes [N, H, W, C]");
  return record(make_mean_pool(in[0], in[1] * in[2], in[3]), {x}, {add_value(Shape{in[0], in[3]})});
}

Value Graph::cross_entropy(Value logits, Value targets, CrossEntropySpec spec) {
  const Shape in = shape(logits);
  const std::int64_t rows = leading(in);
  CHECK(shape(targets).count() == rows, "cross_entropy: one target per row of logits");
  restrict_ids(targets, in.back(), &spec.ignore_index);
  const CrossEntropyDesc desc{.rows = rows,
                              .classes = in.back(),
                              .label_smoothing = spec.label_smoothing,
                              .ignore_index = static_cast<std::int32_t>(spec.ignore_index)};
  return record(make_cross_entropy(desc), {logits, targets},
                {add_value(Shape{}, ValueSpec::Type::f64), add_value(Shape{rows}, ValueSpec::Type::master)});
}

Value Graph::mse(Value prediction, Value targets) {
  CHECK(shape(prediction).count() == shape(targets).count(), "mse: shapes differ");
  return record(make_mse(shape(prediction).count()), {prediction, targets}, {add_value(Shape{}, ValueSpec::Type::f64)});
}

std::vector<ParamId> ready_order(const Graph& graph) {
  std::vector<int> uses(graph.parameters().size(), 0);
  for (const Node& node : graph.nodes()) {
    for (ParamId p : node.params) ++uses[p.index];
  }
  std::vector<ParamId> order;
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    for (auto p = node->params.rbegin(); p != node->params.rend(); ++p) {
      if (--uses[p->index] == 0 && !graph.parameters()[p->index].buffer) order.push_back(*p);
    }
  }
  return order;
}

}  // namespace ddprun::engine
