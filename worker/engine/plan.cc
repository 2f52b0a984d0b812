#include "worker/engine/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "worker/engine/layout.h"
#include "worker/engine/op.h"
#include "worker/kernels/kernels.h"

namespace ddprun::engine {
namespace {

// A step with its memory, as its op sees it.
struct BoundStep {
  StepKind kind = StepKind::forward;
  std::uint32_t node = 0;
  OpMemory memory;
  struct Sum {
    const void* from;
    void* to;
    std::int64_t count;
  };
  std::vector<Sum> additions;
  std::vector<std::uint8_t> param_adds, param_completes;
};

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

  // Takes the memory and tells each step where its tensors lie.
  Result<void> bind(Layout layout) {
    forward_steps_ = layout.forward_steps;
    ready_order_ = std::move(layout.ready_order);
    arena_bytes_ = layout.arena_bytes;
    unplanned_bytes_ = layout.unplanned_bytes;
    arena_ = static_cast<char*>(kernels_.allocate(std::max<std::size_t>(arena_bytes_, 64)));
    if (arena_ == nullptr) {
      return Error(Errc::system, fmt::format("no memory for {} bytes of activations", arena_bytes_));
    }
    auto memory = [&](BufferId b) -> void* {
      return b == kNoBuffer || layout.offsets[b] == kNowhere ? nullptr : arena_ + layout.offsets[b];
    };
    auto all = [&](const std::vector<BufferId>& from, std::vector<void*>& to) {
      for (BufferId b : from) to.push_back(memory(b));
    };
    all(layout.value_buffers, forward_memory_);
    for (Step& step : layout.steps) {
      BoundStep& bound = steps_.emplace_back();
      bound.kind = step.kind;
      bound.node = step.node;
      all(step.in, bound.memory.in);
      all(step.out, bound.memory.out);
      all(step.din, bound.memory.din);
      bound.memory.dout = memory(step.dout);
      bound.memory.scratch = memory(step.scratch);
      bound.memory.din_adds = std::move(step.din_adds);
      for (const Addition& a : step.additions) bound.additions.push_back({memory(a.from), memory(a.to), a.count});
      bound.param_adds = std::move(step.param_adds);
      bound.param_completes = std::move(step.param_completes);
    }
    return allocate_staging();
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
    fresh_ = true;
    frame_.recompute = false;
    frame_.on_ready = nullptr;
    frame_.key = key;
    key_ = key;
    for (std::size_t i = 0; i < forward_steps_; ++i) {
      const BoundStep& step = steps_[i];
      show(step);
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

  Kernels::PendingRead loss_later() override {
    return kernels_.read_later(static_cast<const double*>(forward_memory_[loss_.id]));
  }

  void backward(const BackwardOptions& options, const std::function<void(ParamId)>& on_ready) override {
    CHECK(options_.training, "backward() of an evaluation plan");
    CHECK(fresh_, "backward() without forward(), or backward() twice for one: its activations are gone");
    fresh_ = false;
    frame_.accumulate = options.accumulate;
    frame_.loss_scale = options.loss_scale;
    frame_.key = key_;
    frame_.on_ready = on_ready ? &on_ready : nullptr;
    for (std::size_t i = forward_steps_; i < steps_.size(); ++i) {
      const BoundStep& step = steps_[i];
      show(step);
      const Op& op = *nodes_[step.node].op;
      if (step.kind == StepKind::recompute) {
        frame_.recompute = true;
        op.forward(frame_);
        frame_.recompute = false;
        continue;
      }
      op.backward(frame_);
      for (const BoundStep::Sum& sum : step.additions) kernels_.accumulate(sum.count, sum.from, sum.to);
    }
    frame_.on_ready = nullptr;
  }

  void read(Value output, float* host) override {
    const ValueSpec& spec = values_[output.id];
    CHECK(spec.output, "read() of a value that is not marked as output");
    CHECK(fresh_, "read() before forward() or after backward(): the value's memory serves others");
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
      const BoundStep& s = steps_[i];
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
  Result<void> allocate_staging() {
    if (kernels_.activation_type() == DType::f32) return {};
    std::size_t size = 0;
    for (const ValueSpec& v : values_) {
      if (v.input || v.output) size = std::max(size, static_cast<std::size_t>(v.shape.count()) * sizeof(float));
    }
    if (size == 0) return {};
    staging_ = kernels_.allocate(size);
    if (staging_ == nullptr) return Error(Errc::system, "no memory for staging inputs");
    return {};
  }

  void show(const BoundStep& step) {
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
  bool fresh_ = false;  // between forward() and backward()
  std::vector<BoundStep> steps_;
  std::size_t forward_steps_ = 0;
  std::vector<void*> forward_memory_;  // by value
  std::vector<ParamId> ready_order_;
  char* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::size_t unplanned_bytes_ = 0;
  void* staging_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Plan>> Plan::create(const Graph& graph, ParameterStore& store, const PlanOptions& options) {
  auto layout = lay_out(graph, store, options);
  if (!layout) return std::move(layout).error();
  auto plan = std::make_unique<StaticPlan>(graph, store, options);
  if (auto bound = plan->bind(std::move(*layout)); !bound) return std::move(bound).error();
  return std::unique_ptr<Plan>(std::move(plan));
}

}  // namespace ddprun::engine
