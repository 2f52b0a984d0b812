#include "worker/engine/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "worker/engine/memory_planner.h"
#include "worker/engine/op.h"
#include "worker/kernels/kernels.h"

namespace ddprun::engine {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

enum class StepKind : std::uint8_t { forward, recompute, backward };

struct Step {
  StepKind kind = StepKind::forward;
  std::uint32_t node = 0;
  OpMemory memory;
  // din[i] goes to a temporary that is added to the gradient afterwards.
  std::vector<std::pair<void*, void*>> additions;  // (from, to)
  std::vector<std::int64_t> addition_counts;
  std::vector<std::uint8_t> param_adds, param_completes;
};

// Buffers by number while the schedule is laid out; memory only afterwards.
struct StepBuffers {
  std::vector<std::uint32_t> in, out, din, temporary;
  std::uint32_t dout = kNone;
  std::uint32_t scratch = kNone;
};

class Builder;

class StaticPlan final : public Plan {
 public:
  StaticPlan(const Graph& graph, ParameterStore& store, const PlanOptions& options)
      : nodes_(graph.nodes()),
        values_(graph.values()),
        loss_(graph.loss()),
        store_(store),
        kernels_(store.kernels()),
        options_(options),
        frame_(store.kernels(), store) {}

  ~StaticPlan() override {
    if (arena_ != nullptr) kernels_.release(arena_);
    if (staging_ != nullptr) kernels_.release(staging_);
  }

  Result<void> load(Value input, const void* host) override {
    const ValueSpec& spec = values_[input.id];
    CHECK(spec.input, "load() of a value that is no input");
    const std::size_t count = static_cast<std::size_t>(spec.shape.count());
    void* memory = forward_memory_[input.id];
    if (spec.type == ValueSpec::Type::i32) {
      const std::int32_t* ids = static_cast<const std::int32_t*>(host);
      if (spec.high > spec.low) {
        for (std::size_t i = 0; i < count; ++i) {
          if (ids[i] >= spec.low && ids[i] < spec.high) continue;
          if (spec.has_extra && ids[i] == spec.extra) continue;
          return Error(Errc::invalid_argument, fmt::format("{}: value {} at position {} is not in {}..{}", spec.name,
                                                           ids[i], i, spec.low, spec.high - 1));
        }
      }
      if (memory != nullptr) kernels_.copy_in(memory, host, count * sizeof(std::int32_t));
      return {};
    }
    if (memory == nullptr) return {};
    if (kernels_.activation_type() == DType::f32) {
      kernels_.copy_in(memory, host, count * sizeof(float));
    } else {
      kernels_.copy_in(staging_, host, count * sizeof(float));
      kernels_.from_f32(memory, static_cast<const float*>(staging_), spec.shape.count());
    }
    return {};
  }

  void forward(const RandomKey& key) override {
    frame_.recompute = false;
    frame_.on_ready = nullptr;
    frame_.key = key;
    key_ = key;
    for (std::size_t i = 0; i < forward_steps_; ++i) {
      const Step& step = steps_[i];
      bind(step);
      const Op& op = *nodes_[step.node].op;
      if (options_.training) {
        op.forward(frame_);
      } else {
        op.forward_eval(frame_);
      }
    }
  }

  double loss() override {
    double value = 0;
    kernels_.copy_out(&value, forward_memory_[loss_.id], sizeof value);
    return value;
  }

  void backward(const BackwardOptions& options, const std::function<void(ParamId)>& on_ready) override {
    CHECK(options_.training, "backward() of an evaluation plan");
    frame_.accumulate = options.accumulate;
    frame_.loss_scale = options.loss_scale;
    frame_.key = key_;
    frame_.on_ready = on_ready ? &on_ready : nullptr;
    for (std::size_t i = forward_steps_; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      bind(step);
      const Op& op = *nodes_[step.node].op;
      if (step.kind == StepKind::recompute) {
        frame_.recompute = true;
        op.forward(frame_);
        frame_.recompute = false;
        continue;
      }
      op.backward(frame_);
      for (std::size_t a = 0; a < step.additions.size(); ++a) {
        kernels_.accumulate(step.addition_counts[a], step.additions[a].first, step.additions[a].second);
      }
    }
    frame_.on_ready = nullptr;
  }

  void read(Value output, float* host) override {
    const ValueSpec& spec = values_[output.id];
    CHECK(spec.output, "read() of a value that is not marked as output");
    const std::size_t count = static_cast<std::size_t>(spec.shape.count());
    if (kernels_.activation_type() == DType::f32) {
      kernels_.copy_out(host, forward_memory_[output.id], count * sizeof(float));
      return;
    }
    kernels_.to_f32(static_cast<float*>(staging_), forward_memory_[output.id], spec.shape.count());
    kernels_.copy_out(host, staging_, count * sizeof(float));
  }

  std::span<const ParamId> ready_order() const override { return ready_order_; }

  MemoryReport memory() const override {
    return {.parameter_bytes = store_.parameter_bytes(),
            .gradient_bytes = store_.gradient_bytes(),
            .activation_bytes = arena_bytes_,
            .unplanned_bytes = unplanned_bytes_};
  }

  std::string describe() const override {
    std::string text;
    const char* names[] = {"forward", "recompute", "backward"};
    auto offset = [this](const void* p) {
      return p == nullptr ? std::string("-") : fmt::format("{}", static_cast<const char*>(p) - arena_);
    };
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Step& s = steps_[i];
      const Node& node = nodes_[s.node];
      text += fmt::format("{:4} {:9} {:3} {:18} {}", i, names[static_cast<int>(s.kind)], s.node, node.op->kind(),
                          values_[node.outputs[0].id].shape.to_string());
      for (const void* p : s.memory.in) text += " in@" + offset(p);
      for (const void* p : s.memory.out) text += " out@" + offset(p);
      if (s.kind == StepKind::backward) {
        text += " dout@" + offset(s.memory.dout);
        for (const void* p : s.memory.din) text += " din@" + offset(p);
      }
      text += "\n";
    }
    return text;
  }

 private:
  friend class Builder;

  void bind(const Step& step) {
    frame_.memory = &step.memory;
    frame_.params = nodes_[step.node].params.data();
    frame_.param_adds = step.param_adds.data();
    frame_.param_completes = step.param_completes.data();
    frame_.key.op = step.node;
  }

  std::vector<Node> nodes_;
  std::vector<ValueSpec> values_;
  Value loss_;
  ParameterStore& store_;
  Kernels& kernels_;
  PlanOptions options_;
  Frame frame_;
  RandomKey key_;
  std::vector<Step> steps_;
  std::size_t forward_steps_ = 0;
  std::vector<void*> forward_memory_;  // by value
  std::vector<ParamId> ready_order_;
  char* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::size_t unplanned_bytes_ = 0;
  void* staging_ = nullptr;
};

// Lays out the schedule: decides what is recomputed, who writes and who adds to each gradient, which memory is shared.
class Builder {
 public:
  explicit Builder(StaticPlan& plan)
      : plan_(plan), nodes_(plan.nodes_), values_(plan.values_), kernels_(plan.kernels_) {}

  Result<void> build() {
    CHECK(plan_.loss_.id < values_.size(), "the graph has no loss");
    analyse();
    schedule_forward();
    if (plan_.options_.training) {
      schedule_backward();
      if (auto done = check_gradients(); !done) return done;
    }
    share_memory();
    return place_memory();
  }

 private:
  struct Buffer {
    std::size_t size = 0;
    std::uint32_t first = kNone, last = 0;
    std::uint32_t parent = kNone;  // shares memory with that one
    bool fixed = false;            // an input: kept for the next forward()
  };

  std::size_t width(ValueSpec::Type type) const {
    switch (type) {
      case ValueSpec::Type::activation:
        return size_of(kernels_.activation_type());
      case ValueSpec::Type::master:
        return size_of(kernels_.master_type());
      case ValueSpec::Type::f64:
        return 8;
      case ValueSpec::Type::i32:
        return 4;
      case ValueSpec::Type::u8:
        return 1;
    }
    return 0;
  }
  std::size_t bytes_of(std::uint32_t value) const {
    return static_cast<std::size_t>(values_[value].shape.count()) * width(values_[value].type);
  }

  std::uint32_t new_buffer(std::size_t size) {
    buffers_.push_back({.size = size});
    return static_cast<std::uint32_t>(buffers_.size() - 1);
  }
  std::uint32_t root(std::uint32_t b) const {
    while (buffers_[b].parent != kNone) b = buffers_[b].parent;
    return b;
  }
  void touch(std::uint32_t b, std::uint32_t step) {
    if (b == kNone) return;
    Buffer& buffer = buffers_[root(b)];
    buffer.first = std::min(buffer.first, step);
    buffer.last = std::max(buffer.last, step);
  }
  void merge(std::uint32_t into, std::uint32_t b) {  // b lies over `into`
    into = root(into);
    b = root(b);
    if (into == b) return;
    buffers_[b].parent = into;
    if (buffers_[b].first != kNone) {
      buffers_[into].first = std::min(buffers_[into].first, buffers_[b].first);
      buffers_[into].last = std::max(buffers_[into].last, buffers_[b].last);
    }
    buffers_[into].size = std::max(buffers_[into].size, buffers_[b].size);
  }

  void analyse() {
    const std::size_t n = values_.size();
    producer_.assign(n, kNone);
    consumers_.assign(n, {});
    needs_gradient_.assign(n, 0);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      bool needs = false;
      for (ParamId p : nodes_[i].params) needs = needs || plan_.store_[p].trainable;
      for (std::size_t j = 0; j < nodes_[i].inputs.size(); ++j) {
        const std::uint32_t v = nodes_[i].inputs[j].id;
        consumers_[v].push_back(i);
        needs = needs || (needs_gradient_[v] != 0 && nodes_[i].op->differentiable(j));
      }
      for (Value v : nodes_[i].outputs) producer_[v.id] = i;
      needs_gradient_[nodes_[i].outputs[0].id] = needs ? 1 : 0;
    }
    // What the loss depends on.
    reaches_loss_.assign(nodes_.size(), 0);
    std::vector<std::uint8_t> wanted(n, 0);
    wanted[plan_.loss_.id] = 1;
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (wanted[nodes_[i].outputs[0].id] == 0) continue;
      reaches_loss_[i] = 1;
      for (Value v : nodes_[i].inputs) wanted[v.id] = 1;
    }
    recomputed_.assign(nodes_.size(), 0);
    if (plan_.options_.training && plan_.options_.activation_checkpointing) {
      for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].segment < 0) continue;
        const std::uint32_t out = nodes_[i].outputs[0].id;
        bool inside = !values_[out].output && out != plan_.loss_.id;
        for (std::uint32_t c : consumers_[out]) inside = inside && nodes_[c].segment == nodes_[i].segment;
        recomputed_[i] = inside ? 1 : 0;
      }
    }
    forward_buffer_.resize(n);
    backward_buffer_.resize(n);
    gradient_.assign(n, kNone);
    written_.assign(n, 0);
    for (std::uint32_t v = 0; v < n; ++v) {
      forward_buffer_[v] = new_buffer(bytes_of(v));
      const bool again = producer_[v] != kNone && recomputed_[producer_[v]] != 0;
      backward_buffer_[v] = again ? new_buffer(bytes_of(v)) : forward_buffer_[v];
      buffers_[forward_buffer_[v]].fixed = values_[v].input;
    }
  }

  Step& add_step(StepKind kind, std::uint32_t node) {
    plan_.steps_.emplace_back();
    Step& step = plan_.steps_.back();
    step.kind = kind;
    step.node = node;
    step.param_adds.assign(nodes_[node].params.size(), 0);
    step.param_completes.assign(nodes_[node].params.size(), 0);
    buffers_of_.emplace_back();
    return step;
  }
  std::uint32_t now() const { return static_cast<std::uint32_t>(plan_.steps_.size() - 1); }

  std::size_t prepare(std::uint32_t node, const PrepareInfo& info) { return nodes_[node].op->prepare(kernels_, info); }

  void schedule_forward() {
    scratch_.assign(nodes_.size(), 0);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      add_step(StepKind::forward, i);
      StepBuffers& b = buffers_of_.back();
      for (Value v : nodes_[i].inputs) b.in.push_back(forward_buffer_[v.id]);
      for (Value v : nodes_[i].outputs) b.out.push_back(forward_buffer_[v.id]);
      if (!plan_.options_.training) {
        PrepareInfo info{.training = false, .din_wanted = {}, .din_adds = {}};
        info.din_wanted.assign(nodes_[i].inputs.size(), 0);
        info.din_adds.assign(nodes_[i].inputs.size(), 0);
        scratch_[i] = prepare(i, info);
        b.scratch = scratch_[i] > 0 ? new_buffer(scratch_[i]) : kNone;
      }
    }
    plan_.forward_steps_ = plan_.steps_.size();
    for (std::uint32_t v = 0; v < values_.size(); ++v) {
      const std::uint32_t end = static_cast<std::uint32_t>(plan_.forward_steps_);  // one past the last forward step
      if (values_[v].input) touch(forward_buffer_[v], 0);
      if (values_[v].output || v == plan_.loss_.id) touch(forward_buffer_[v], end);
    }
    touch_steps(0, plan_.forward_steps_);
  }

  void touch_steps(std::size_t from, std::size_t to) {
    for (std::size_t s = from; s < to; ++s) {
      const StepBuffers& b = buffers_of_[s];
      const std::uint32_t step = static_cast<std::uint32_t>(s);
      for (const auto* list : {&b.in, &b.out, &b.din, &b.temporary}) {
        for (std::uint32_t buffer : *list) touch(buffer, step);
      }
      touch(b.dout, step);
      touch(b.scratch, step);
    }
  }

  // Steps that bring back what the backward steps of a segment read.
  void schedule_recompute(std::int32_t segment) {
    std::vector<std::uint8_t> needed(nodes_.size(), 0);
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (nodes_[i].segment != segment || reaches_loss_[i] == 0) continue;
      const Op& op = *nodes_[i].op;
      auto need = [&](std::uint32_t v) {
        if (producer_[v] != kNone && recomputed_[producer_[v]] != 0) needed[producer_[v]] = 1;
      };
      if (needs_gradient_[nodes_[i].outputs[0].id] != 0) {
        for (std::size_t j = 0; j < nodes_[i].inputs.size(); ++j) {
          if ((op.backward_reads_inputs() >> j) & 1u) need(nodes_[i].inputs[j].id);
        }
        if (op.backward_reads_outputs() != 0 && recomputed_[i] != 0) needed[i] = 1;
      }
      if (needed[i] != 0) {
        for (Value v : nodes_[i].inputs) need(v.id);
      }
    }
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (needed[i] == 0) continue;
      add_step(StepKind::recompute, i);
      StepBuffers& b = buffers_of_.back();
      for (Value v : nodes_[i].inputs) b.in.push_back(backward_buffer_[v.id]);
      for (Value v : nodes_[i].outputs) b.out.push_back(backward_buffer_[v.id]);
    }
  }

  void schedule_backward() {
    std::vector<int> uses(plan_.store_.parameters().size(), 0);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (!runs_backward(i)) continue;
      for (ParamId p : nodes_[i].params) ++uses[p.index];
    }
    std::vector<std::uint8_t> seen(uses.size(), 0);
    std::int32_t segment = -1;
    for (std::uint32_t i = static_cast<std::uint32_t>(nodes_.size()); i-- > 0;) {
      if (!runs_backward(i)) continue;
      const Node& node = nodes_[i];
      if (node.segment != segment) {
        segment = node.segment;
        if (segment >= 0 && plan_.options_.activation_checkpointing) schedule_recompute(segment);
      }
      Step& step = add_step(StepKind::backward, i);
      for (std::size_t p = node.params.size(); p-- > 0;) {
        const std::uint32_t index = node.params[p].index;
        step.param_adds[p] = seen[index];
        seen[index] = 1;
        if (--uses[index] == 0) {
          step.param_completes[p] = 1;
          if (plan_.store_[node.params[p]].trainable) plan_.ready_order_.push_back(node.params[p]);
        }
      }
      backward_step(i, step);
    }
    touch_steps(plan_.forward_steps_, plan_.steps_.size());
    // Scratch of both directions, known now that each op's gradients are.
    for (std::size_t s = 0; s < plan_.steps_.size(); ++s) {
      const std::size_t size = scratch_[plan_.steps_[s].node];
      if (size == 0) continue;
      buffers_of_[s].scratch = new_buffer(size);
      touch(buffers_of_[s].scratch, static_cast<std::uint32_t>(s));
    }
  }

  bool runs_backward(std::uint32_t i) const {
    return reaches_loss_[i] != 0 && needs_gradient_[nodes_[i].outputs[0].id] != 0;
  }

  void backward_step(std::uint32_t i, Step& step) {
    const Node& node = nodes_[i];
    const Op& op = *node.op;
    StepBuffers& b = buffers_of_.back();
    const std::size_t n = node.inputs.size();
    b.in.assign(n, kNone);
    b.out.assign(node.outputs.size(), kNone);
    b.din.assign(n, kNone);
    b.temporary.assign(n, kNone);
    step.memory.din_adds.assign(n, 0);
    for (std::size_t j = 0; j < n; ++j) {
      if ((op.backward_reads_inputs() >> j) & 1u) b.in[j] = backward_buffer_[node.inputs[j].id];
    }
    for (std::size_t j = 0; j < node.outputs.size(); ++j) {
      if ((op.backward_reads_outputs() >> j) & 1u) b.out[j] = backward_buffer_[node.outputs[j].id];
    }
    const std::uint32_t y = node.outputs[0].id;
    if (y != plan_.loss_.id) b.dout = gradient_[y];

    PrepareInfo info;
    info.din_wanted.assign(n, 0);
    info.din_adds.assign(n, 0);
    std::vector<std::size_t> order(n);
    for (std::size_t j = 0; j < n; ++j) order[j] = j;
    if (op.is_add() && n == 2 && consumers_[node.inputs[1].id].size() > consumers_[node.inputs[0].id].size()) {
      std::swap(order[0], order[1]);
    }
    std::uint32_t shares_dout = kNone;  // the input whose gradient lies over dout
    for (std::size_t j : order) {
      const std::uint32_t v = node.inputs[j].id;
      if (needs_gradient_[v] == 0 || !op.differentiable(j)) continue;
      info.din_wanted[j] = 1;
      if (op.is_add() && written_[v] == 0 && may_share(v, i, shares_dout)) {
        gradient_[v] = b.dout;
        written_[v] = 1;
        if (shares_dout == kNone) shares_dout = v;
        continue;  // no work: din stays null
      }
      if (gradient_[v] == kNone) gradient_[v] = new_buffer(bytes_of(v));
      b.din[j] = gradient_[v];
      if (written_[v] != 0) {
        if (op.can_add(j)) {
          step.memory.din_adds[j] = 1;
          info.din_adds[j] = 1;
        } else {
          b.temporary[j] = new_buffer(bytes_of(v));
        }
      }
      written_[v] = 1;
    }
    scratch_[i] = std::max(scratch_[i], prepare(i, info));
  }

  // An addition hands its gradient on unchanged. The first input takes over the memory; others add to it there. A
  // second one may read the same memory if its producer runs backward (the only reader) before anybody adds.
  bool may_share(std::uint32_t v, std::uint32_t node, std::uint32_t first) const {
    if (first == kNone) return true;
    if (consumers_[v].size() != 1 || producer_[v] == kNone || nodes_[producer_[v]].op->is_add()) return false;
    for (std::uint32_t c : consumers_[first]) {
      if (c != node && c >= producer_[v]) return false;
    }
    return producer_[first] == kNone || producer_[first] < producer_[v];
  }

  Result<void> check_gradients() {
    for (const Parameter& p : plan_.store_.parameters()) {
      if (!p.trainable) continue;
      if (std::find(plan_.ready_order_.begin(), plan_.ready_order_.end(), p.id) == plan_.ready_order_.end()) {
        return Error(Errc::invalid_argument,
                     fmt::format("parameter {} does not take part in the loss; freeze it or use it", p.name));
      }
    }
    return {};
  }

  void share_memory() {
    for (const Buffer& b : buffers_) {
      if (b.first != kNone && b.parent == kNone) plan_.unplanned_bytes_ += b.size;
    }
    for (std::uint32_t s = 0; s < plan_.steps_.size(); ++s) {
      const Op& op = *nodes_[plan_.steps_[s].node].op;
      const StepBuffers& b = buffers_of_[s];
      if (plan_.steps_[s].kind != StepKind::backward) {
        if (op.forward_in_place()) lay_over(b.out[0], b.in[0], s);
        continue;
      }
      for (const Op::InPlace& choice : op.backward_in_place()) {
        if (choice.input >= b.din.size() || b.din[choice.input] == kNone) continue;
        lay_over(b.din[choice.input], choice.over_dout ? b.dout : b.in[choice.source], s);
      }
    }
  }

  // `fresh`, first written in step s, takes the memory of `old` if nobody needs that afterwards.
  void lay_over(std::uint32_t fresh, std::uint32_t old, std::uint32_t s) {
    if (old == kNone || fresh == kNone) return;
    const std::uint32_t f = root(fresh), o = root(old);
    if (f == o || buffers_[f].first != s || buffers_[o].last != s || buffers_[o].first == s || buffers_[o].fixed)
      return;
    if (buffers_[f].size > buffers_[o].size) return;
    merge(o, f);
  }

  Result<void> place_memory() {
    std::vector<Lifetime> lifetimes;
    std::vector<std::uint32_t> slot(buffers_.size(), kNone);
    for (std::uint32_t b = 0; b < buffers_.size(); ++b) {
      if (buffers_[b].parent != kNone || buffers_[b].first == kNone) continue;
      slot[b] = static_cast<std::uint32_t>(lifetimes.size());
      lifetimes.push_back({buffers_[b].size, buffers_[b].first, buffers_[b].last});
    }
    const Placement placement = place(lifetimes);
    plan_.arena_bytes_ = placement.total_bytes;
    plan_.arena_ = static_cast<char*>(kernels_.allocate(std::max<std::size_t>(placement.total_bytes, 64)));
    if (plan_.arena_ == nullptr) {
      return Error(Errc::system, fmt::format("no memory for {} bytes of activations", placement.total_bytes));
    }
    auto memory = [&](std::uint32_t b) -> void* {
      if (b == kNone || slot[root(b)] == kNone) return nullptr;
      return plan_.arena_ + placement.offsets[slot[root(b)]];
    };
    std::size_t staging = 0;
    plan_.forward_memory_.resize(values_.size());
    for (std::uint32_t v = 0; v < values_.size(); ++v) {
      plan_.forward_memory_[v] = memory(forward_buffer_[v]);
      if (values_[v].input || values_[v].output) {
        staging = std::max(staging, static_cast<std::size_t>(values_[v].shape.count()) * sizeof(float));
      }
    }
    if (kernels_.activation_type() != DType::f32 && staging > 0) {
      plan_.staging_ = kernels_.allocate(staging);
      if (plan_.staging_ == nullptr) return Error(Errc::system, "no memory for staging inputs");
    }
    for (std::size_t s = 0; s < plan_.steps_.size(); ++s) {
      Step& step = plan_.steps_[s];
      const StepBuffers& b = buffers_of_[s];
      for (std::uint32_t x : b.in) step.memory.in.push_back(memory(x));
      for (std::uint32_t x : b.out) step.memory.out.push_back(memory(x));
      step.memory.dout = memory(b.dout);
      step.memory.scratch = memory(b.scratch);
      for (std::size_t j = 0; j < b.din.size(); ++j) {
        if (b.temporary[j] != kNone) {
          step.memory.din.push_back(memory(b.temporary[j]));
          step.additions.emplace_back(memory(b.temporary[j]), memory(b.din[j]));
          step.addition_counts.push_back(values_[nodes_[step.node].inputs[j].id].shape.count());
        } else {
          step.memory.din.push_back(memory(b.din[j]));
        }
      }
    }
    return {};
  }

  StaticPlan& plan_;
  const std::vector<Node>& nodes_;
  const std::vector<ValueSpec>& values_;
  Kernels& kernels_;
  std::vector<Buffer> buffers_;
  std::vector<StepBuffers> buffers_of_;  // by step
  std::vector<std::uint32_t> producer_;
  std::vector<std::vector<std::uint32_t>> consumers_;
  std::vector<std::uint8_t> needs_gradient_, reaches_loss_, recomputed_, written_;
  std::vector<std::uint32_t> forward_buffer_, backward_buffer_, gradient_;
  std::vector<std::size_t> scratch_;  // by node
};

}  // namespace

Result<std::unique_ptr<Plan>> Plan::create(const Graph& graph, ParameterStore& store, const PlanOptions& options) {
  auto plan = std::make_unique<StaticPlan>(graph, store, options);
  if (auto built = Builder(*plan).build(); !built) return std::move(built).error();
  return std::unique_ptr<Plan>(std::move(plan));
}

}  // namespace ddprun::engine
