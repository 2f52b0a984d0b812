#include "worker/engine/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "worker/engine/memory_planner.h"
#include "worker/engine/op.h"
#include "worker/kernels/kernels.h"

namespace ddprun::engine {
namespace {

class Builder {
 public:
  Builder(const Graph& graph, const ParameterStore& store, const PlanOptions& options)
      : nodes_(graph.nodes()),
        values_(graph.values()),
        loss_(graph.loss()),
        store_(store),
        kernels_(store.kernels()),
        options_(options) {}

  Result<Layout> build() {
    CHECK(loss_.id < values_.size(), "the graph has no loss");
    analyse();
    schedule_forward();
    if (options_.training) {
      schedule_backward();
      if (auto done = check_gradients(); !done) return std::move(done).error();
    }
    keep_loss();
    share_memory();
    place_memory();
    return std::move(layout_);
  }

 private:
  struct Buffer {
    std::size_t size = 0;
    std::uint32_t first = kNoBuffer, last = 0;
    std::uint32_t parent = kNoBuffer;  // shares memory with that one
    bool fixed = false;                // an input: kept for the next forward()
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
    while (buffers_[b].parent != kNoBuffer) b = buffers_[b].parent;
    return b;
  }
  void touch(std::uint32_t b, std::uint32_t step) {
    if (b == kNoBuffer) return;
    Buffer& buffer = buffers_[root(b)];
    buffer.first = std::min(buffer.first, step);
    buffer.last = std::max(buffer.last, step);
  }
  void merge(std::uint32_t into, std::uint32_t b) {  // b lies over `into`
    into = root(into);
    b = root(b);
    if (into == b) return;
    buffers_[b].parent = into;
    if (buffers_[b].first != kNoBuffer) {
      buffers_[into].first = std::min(buffers_[into].first, buffers_[b].first);
      buffers_[into].last = std::max(buffers_[into].last, buffers_[b].last);
    }
    buffers_[into].size = std::max(buffers_[into].size, buffers_[b].size);
  }

  void analyse() {
    const std::size_t n = values_.size();
    producer_.assign(n, kNoBuffer);
    consumers_.assign(n, {});
    needs_gradient_.assign(n, 0);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      bool needs = false;
      for (ParamId p : nodes_[i].params) needs = needs || store_[p].trainable;
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
    wanted[loss_.id] = 1;
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (wanted[nodes_[i].outputs[0].id] == 0) continue;
      reaches_loss_[i] = 1;
      for (Value v : nodes_[i].inputs) wanted[v.id] = 1;
    }
    recomputed_.assign(nodes_.size(), 0);
    if (options_.training && options_.activation_checkpointing) {
      for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].segment < 0) continue;
        const std::uint32_t out = nodes_[i].outputs[0].id;
        bool inside = !values_[out].output && out != loss_.id;
        for (std::uint32_t c : consumers_[out]) inside = inside && nodes_[c].segment == nodes_[i].segment;
        recomputed_[i] = inside ? 1 : 0;
      }
    }
    forward_buffer_.resize(n);
    backward_buffer_.resize(n);
    gradient_.assign(n, kNoBuffer);
    written_.assign(n, 0);
    for (std::uint32_t v = 0; v < n; ++v) {
      forward_buffer_[v] = new_buffer(bytes_of(v));
      const bool again = producer_[v] != kNoBuffer && recomputed_[producer_[v]] != 0;
      backward_buffer_[v] = again ? new_buffer(bytes_of(v)) : forward_buffer_[v];
      buffers_[forward_buffer_[v]].fixed = values_[v].input;
    }
  }

  Step& add_step(StepKind kind, std::uint32_t node) {
    layout_.steps.emplace_back();
    Step& step = layout_.steps.back();
    step.kind = kind;
    step.node = node;
    step.param_adds.assign(nodes_[node].params.size(), 0);
    step.param_completes.assign(nodes_[node].params.size(), 0);
    return step;
  }

  std::size_t prepare(std::uint32_t node, const PrepareInfo& info) { return nodes_[node].op->prepare(kernels_, info); }

  void schedule_forward() {
    scratch_.assign(nodes_.size(), 0);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      Step& step = add_step(StepKind::forward, i);
      for (Value v : nodes_[i].inputs) step.in.push_back(forward_buffer_[v.id]);
      for (Value v : nodes_[i].outputs) step.out.push_back(forward_buffer_[v.id]);
      if (options_.training && runs_backward(i)) continue;  // prepared for both directions later
      PrepareInfo info{.training = false, .din_wanted = {}, .din_adds = {}};
      info.din_wanted.assign(nodes_[i].inputs.size(), 0);
      info.din_adds.assign(nodes_[i].inputs.size(), 0);
      scratch_[i] = prepare(i, info);
    }
    layout_.forward_steps = layout_.steps.size();
    for (std::uint32_t v = 0; v < values_.size(); ++v) {
      const std::uint32_t end = static_cast<std::uint32_t>(layout_.forward_steps);  // one past the last forward step
      if (values_[v].input) touch(forward_buffer_[v], 0);
      if (values_[v].output || v == loss_.id) touch(forward_buffer_[v], end);
    }
    touch_steps(0, layout_.forward_steps);
    if (!options_.training) give_scratch();
  }

  // Scratch of both directions, known when each op's gradients are.
  void give_scratch() {
    for (std::size_t s = 0; s < layout_.steps.size(); ++s) {
      Step& step = layout_.steps[s];
      if (scratch_[step.node] == 0) continue;
      step.scratch = new_buffer(scratch_[step.node]);
      touch(step.scratch, static_cast<std::uint32_t>(s));
    }
  }

  void touch_steps(std::size_t from, std::size_t to) {
    for (std::size_t s = from; s < to; ++s) {
      const Step& step = layout_.steps[s];
      const std::uint32_t now = static_cast<std::uint32_t>(s);
      for (const auto* list : {&step.in, &step.out, &step.din}) {
        for (BufferId buffer : *list) touch(buffer, now);
      }
      for (const Addition& a : step.additions) touch(a.to, now);
      touch(step.dout, now);
    }
  }

  // Steps that bring back what the backward steps of a segment read.
  void schedule_recompute(std::int32_t segment) {
    std::vector<std::uint8_t> needed(nodes_.size(), 0);
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (nodes_[i].segment != segment || reaches_loss_[i] == 0) continue;
      const Op& op = *nodes_[i].op;
      auto need = [&](std::uint32_t v) {
        if (producer_[v] != kNoBuffer && recomputed_[producer_[v]] != 0) needed[producer_[v]] = 1;
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
      Step& step = add_step(StepKind::recompute, i);
      for (Value v : nodes_[i].inputs) step.in.push_back(backward_buffer_[v.id]);
      for (Value v : nodes_[i].outputs) step.out.push_back(backward_buffer_[v.id]);
    }
  }

  void schedule_backward() {
    std::vector<int> uses(store_.parameters().size(), 0);
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
        if (segment >= 0 && options_.activation_checkpointing) schedule_recompute(segment);
      }
      Step& step = add_step(StepKind::backward, i);
      for (std::size_t p = node.params.size(); p-- > 0;) {
        const std::uint32_t index = node.params[p].index;
        step.param_adds[p] = seen[index];
        seen[index] = 1;
        if (--uses[index] == 0) {
          step.param_completes[p] = 1;
          if (store_[node.params[p]].trainable) layout_.ready_order.push_back(node.params[p]);
        }
      }
      backward_step(i, step);
    }
    touch_steps(layout_.forward_steps, layout_.steps.size());
    give_scratch();
  }

  bool runs_backward(std::uint32_t i) const {
    return reaches_loss_[i] != 0 && needs_gradient_[nodes_[i].outputs[0].id] != 0;
  }

  void backward_step(std::uint32_t i, Step& step) {
    const Node& node = nodes_[i];
    const Op& op = *node.op;
    const std::size_t n = node.inputs.size();
    step.in.assign(n, kNoBuffer);
    step.out.assign(node.outputs.size(), kNoBuffer);
    step.din.assign(n, kNoBuffer);
    step.din_adds.assign(n, 0);
    for (std::size_t j = 0; j < n; ++j) {
      if ((op.backward_reads_inputs() >> j) & 1u) step.in[j] = backward_buffer_[node.inputs[j].id];
    }
    for (std::size_t j = 0; j < node.outputs.size(); ++j) {
      if ((op.backward_reads_outputs() >> j) & 1u) step.out[j] = backward_buffer_[node.outputs[j].id];
    }
    const std::uint32_t y = node.outputs[0].id;
    if (y != loss_.id) step.dout = gradient_[y];

    PrepareInfo info;
    info.din_wanted.assign(n, 0);
    info.din_adds.assign(n, 0);
    std::vector<std::size_t> order(n);
    for (std::size_t j = 0; j < n; ++j) order[j] = j;
    if (op.is_add() && n == 2 && consumers_[node.inputs[1].id].size() > consumers_[node.inputs[0].id].size()) {
      std::swap(order[0], order[1]);
    }
    std::uint32_t shares_dout = kNoBuffer;  // the input whose gradient lies over dout
    for (std::size_t j : order) {
      const std::uint32_t v = node.inputs[j].id;
      if (needs_gradient_[v] == 0 || !op.differentiable(j)) continue;
      info.din_wanted[j] = 1;
      if (op.is_add() && written_[v] == 0 && may_share(v, i, shares_dout)) {
        gradient_[v] = step.dout;
        written_[v] = 1;
        if (shares_dout == kNoBuffer) shares_dout = v;
        continue;  // no work: din stays null
      }
      if (gradient_[v] == kNoBuffer) gradient_[v] = new_buffer(bytes_of(v));
      step.din[j] = gradient_[v];
      if (written_[v] != 0) {
        if (op.can_add(j)) {
          step.din_adds[j] = 1;
          info.din_adds[j] = 1;
        } else {
          step.din[j] = new_buffer(bytes_of(v));
          step.additions.push_back({step.din[j], gradient_[v], values_[v].shape.count()});
        }
      }
      written_[v] = 1;
    }
    scratch_[i] = std::max(scratch_[i], prepare(i, info));
  }

  // An addition hands its gradient on unchanged. The first input takes over the memory; others add to it there. A
  // second one may read the same memory if its producer runs backward (the only reader) before anybody adds.
  bool may_share(std::uint32_t v, std::uint32_t node, std::uint32_t first) const {
    if (first == kNoBuffer) return true;
    if (consumers_[v].size() != 1 || producer_[v] == kNoBuffer || nodes_[producer_[v]].op->is_add()) return false;
    for (std::uint32_t c : consumers_[first]) {
      if (c != node && c >= producer_[v]) return false;
    }
    return producer_[first] == kNoBuffer || producer_[first] < producer_[v];
  }

  Result<void> check_gradients() {
    for (const Parameter& p : store_.parameters()) {
      if (!p.trainable) continue;
      if (std::find(layout_.ready_order.begin(), layout_.ready_order.end(), p.id) == layout_.ready_order.end()) {
        return Error(Errc::invalid_argument,
                     fmt::format("parameter {} does not take part in the loss; freeze it or use it", p.name));
      }
    }
    return {};
  }

  void share_memory() {
    for (const Buffer& b : buffers_) {
      if (b.first != kNoBuffer && b.parent == kNoBuffer) layout_.unplanned_bytes += b.size;
    }
    for (std::uint32_t s = 0; s < layout_.steps.size(); ++s) {
      const Op& op = *nodes_[layout_.steps[s].node].op;
      const Step& step = layout_.steps[s];
      if (step.kind != StepKind::backward) {
        if (op.forward_in_place()) lay_over(step.out[0], step.in[0], s);
        continue;
      }
      for (const Op::InPlace& choice : op.backward_in_place()) {
        if (choice.input >= step.din.size() || step.din[choice.input] == kNoBuffer) continue;
        lay_over(step.din[choice.input], choice.over_dout ? step.dout : step.in[choice.source], s);
      }
    }
  }

  // `fresh`, first written in step s, takes the memory of `old` if nobody needs that afterwards.
  void lay_over(std::uint32_t fresh, std::uint32_t old, std::uint32_t s) {
    if (old == kNoBuffer || fresh == kNoBuffer) return;
    const std::uint32_t f = root(fresh), o = root(old);
    if (f == o || buffers_[f].first != s || buffers_[o].last != s || buffers_[o].first == s || buffers_[o].fixed)
      return;
    if (buffers_[f].size > buffers_[o].size) return;
    merge(o, f);
  }

  // loss() may be called at any time: eight bytes that nobody else gets.
  void keep_loss() { touch(forward_buffer_[loss_.id], static_cast<std::uint32_t>(layout_.steps.size())); }

  void place_memory() {
    std::vector<Lifetime> lifetimes;
    std::vector<std::size_t> slot(buffers_.size(), 0);
    for (BufferId b = 0; b < buffers_.size(); ++b) {
      if (buffers_[b].parent != kNoBuffer || buffers_[b].first == kNoBuffer) continue;
      slot[b] = lifetimes.size();
      lifetimes.push_back({buffers_[b].size, buffers_[b].first, buffers_[b].last});
    }
    const Placement placement = place(lifetimes);
    layout_.arena_bytes = placement.total_bytes;
    layout_.offsets.assign(buffers_.size(), kNowhere);
    for (BufferId b = 0; b < buffers_.size(); ++b) {
      if (buffers_[root(b)].first != kNoBuffer) layout_.offsets[b] = placement.offsets[slot[root(b)]];
    }
    layout_.value_buffers = std::move(forward_buffer_);
  }

  const std::vector<Node>& nodes_;
  const std::vector<ValueSpec>& values_;
  const Value loss_;
  const ParameterStore& store_;
  Kernels& kernels_;
  const PlanOptions options_;
  Layout layout_;
  std::vector<Buffer> buffers_;
  std::vector<std::uint32_t> producer_;
  std::vector<std::vector<std::uint32_t>> consumers_;
  std::vector<std::uint8_t> needs_gradient_, reaches_loss_, recomputed_, written_;
  std::vector<BufferId> forward_buffer_, backward_buffer_, gradient_;
  std::vector<std::size_t> scratch_;  // by node
};

}  // namespace

Result<Layout> lay_out(const Graph& graph, const ParameterStore& store, const PlanOptions& options) {
  return Builder(graph, store, options).build();
}

}  // namespace ddprun::engine
