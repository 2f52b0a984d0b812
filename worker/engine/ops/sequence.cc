// Ops of language models: embeddings and attention.
#include "worker/engine/ops/ops.h"

namespace ddprun::engine {
namespace {

class Embedding final : public Op {
 public:
  Embedding(std::int64_t count, std::int64_t dim, std::int64_t rows) : count_(count), dim_(dim), rows_(rows) {}
  const char* kind() const override { return "embedding"; }
  std::uint32_t backward_reads_inputs() const override { return 1; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  bool differentiable(std::size_t) const override { return false; }
  void forward(const Frame& f) const override {
    f.kernels.embedding(count_, dim_, static_cast<const std::int32_t*>(f.in(0)), f.weight(0), f.out());
  }
  void backward(const Frame& f) const override {
    if (Master* dw = f.gradient(0)) {
      f.kernels.embedding_backward(count_, dim_, rows_, static_cast<const std::int32_t*>(f.in(0)), f.dout(), dw,
                                   f.adds(0));
    }
    f.ready(0);
  }

 private:
  std::int64_t count_, dim_, rows_;
};

class AddPositions final : public Op {
 public:
  AddPositions(std::int64_t batch, std::int64_t tokens, std::int64_t dim, std::int64_t rows)
      : batch_(batch), inner_(tokens * dim), total_(rows * dim) {}
  const char* kind() const override { return "add_positions"; }
  std::uint32_t backward_reads_inputs() const override { return 0; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  bool can_add(std::size_t) const override { return true; }
  bool forward_in_place() const override { return true; }
  bool is_add() const override { return true; }
  void forward(const Frame& f) const override {
    f.kernels.add_broadcast(batch_, inner_, f.in(0), f.weight(0), f.out());
  }
  void backward(const Frame& f) const override {
    if (Master* dw = f.gradient(0)) {
      const std::size_t width = size_of(f.kernels.master_type());
      if (!f.adds(0) && total_ > inner_) {
        f.kernels.zero(static_cast<char*>(dw) + static_cast<std::size_t>(inner_) * width,
                       static_cast<std::size_t>(total_ - inner_) * width);
      }
      f.kernels.column_sums(batch_, inner_, f.dout(), dw, f.adds(0));
    }
    f.ready(0);
    if (f.din(0) == nullptr) return;
    if (f.din_adds(0)) {
      f.kernels.accumulate(batch_ * inner_, f.dout(), f.din(0));
    } else {
      f.kernels.copy(f.din(0), f.dout(),
                     static_cast<std::size_t>(batch_ * inner_) * size_of(f.kernels.activation_type()));
    }
  }

 private:
  std::int64_t batch_, inner_, total_;
};

// outputs: y, log_sum.
class Attention final : public Op {
 public:
  explicit Attention(const AttentionDesc& desc) : desc_(desc) {}
  const char* kind() const override { return "causal_attention"; }
  std::uint32_t backward_reads_inputs() const override { return 1; }
  std::uint32_t backward_reads_outputs() const override { return 3; }
  std::size_t prepare(Kernels& k, const PrepareInfo&) const override { return k.prepare(desc_); }
  void forward(const Frame& f) const override {
    f.kernels.attention(desc_, f.key, f.in(0), f.out(0), f.out(1), f.scratch());
  }
  void forward_eval(const Frame& f) const override {
    AttentionDesc desc = desc_;
    desc.dropout = 0;
    f.kernels.attention(desc, f.key, f.in(0), f.out(0), f.out(1), f.scratch());
  }
  void backward(const Frame& f) const override {
    if (f.din(0)) {
      f.kernels.attention_backward(desc_, f.key, f.dout(), f.in(0), f.out(0), f.out(1), f.din(0), f.scratch());
    }
  }

 private:
  AttentionDesc desc_;
};

}  // namespace

std::shared_ptr<const Op> make_embedding(std::int64_t count, std::int64_t dim, std::int64_t rows) {
  return std::make_shared<Embedding>(count, dim, rows);
}
std::shared_ptr<const Op> make_add_positions(std::int64_t batch, std::int64_t tokens, std::int64_t dim,
                                             std::int64_t rows) {
  return std::make_shared<AddPositions>(batch, tokens, dim, rows);
}
std::shared_ptr<const Op> make_attention(const AttentionDesc& desc) { return std::make_shared<Attention>(desc); }

}  // namespace ddprun::engine
