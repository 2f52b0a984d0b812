#include "worker/engine/ops/ops.h"

namespace ddprun::engine {
namespace {

constexpr std::size_t kBatchNormCounter = 4;  // place of num_batches_tracked among a batch norm's parameters

// inputs: x, residual?; outputs: y, mean, rstd; parameters: weight, bias, running_mean, running_var, counter.
class BatchNorm final : public Op {
 public:
  explicit BatchNorm(const BatchNormDesc& desc) : desc_(desc) {}

  const char* kind() const override {
    if (desc_.residual) return desc_.relu ? "batch_norm_add_relu" : "batch_norm_add";
    return desc_.relu ? "batch_norm_relu" : "batch_norm";
  }
  std::uint32_t backward_reads_inputs() const override { return 1; }
  std::uint32_t backward_reads_outputs() const override { return desc_.relu ? 7 : 6; }
  bool differentiable(std::size_t) const override { return true; }
  bool can_add(std::size_t input) const override { return input == 1; }
  bool forward_in_place() const override { return true; }
  std::vector<InPlace> backward_in_place() const override {
    // The last pass over memory is elementwise: dx may replace x, and the residual's gradient dy.
    return {{.input = 0, .over_dout = false, .source = 0},
            {.input = 1, .over_dout = true},
            {.input = 0, .over_dout = true}};
  }
  std::size_t prepare(Kernels& k, const PrepareInfo&) const override { return k.prepare(desc_); }

  void forward(const Frame& f) const override {
    f.kernels.batch_norm_train(desc_, f.in(0), desc_.residual ? f.in(1) : nullptr, f.master(0), f.master(1),
                               f.recompute ? nullptr : f.master(2), f.recompute ? nullptr : f.master(3), f.out(1),
                               f.out(2), f.out(0), f.scratch());
    if (!f.recompute) ++*static_cast<std::int64_t*>(f.master(kBatchNormCounter));
  }

  void forward_eval(const Frame& f) const override {
    f.kernels.batch_norm_eval(desc_, f.in(0), desc_.residual ? f.in(1) : nullptr, f.master(0), f.master(1), f.master(2),
                              f.master(3), f.out(0));
  }

  void backward(const Frame& f) const override {
    void* dresidual = desc_.residual ? f.din(1) : nullptr;
    f.kernels.batch_norm_backward(desc_, f.dout(), f.in(0), f.out(0), f.master(0), f.out(1), f.out(2), f.din(0),
                                  dresidual, dresidual != nullptr && f.din_adds(1), f.gradient(0), f.gradient(1),
                                  f.adds(0), f.scratch());
    f.ready(1);
    f.ready(0);
  }

 private:
  BatchNormDesc desc_;
};

// outputs: y, mean, rstd; parameters: weight, bias.
class LayerNorm final : public Op {
 public:
  explicit LayerNorm(const LayerNormDesc& desc) : desc_(desc) {}

  const char* kind() const override { return "layer_norm"; }
  std::uint32_t backward_reads_inputs() const override { return 1; }
  std::uint32_t backward_reads_outputs() const override { return 6; }
  bool can_add(std::size_t) const override { return true; }
  std::size_t prepare(Kernels& k, const PrepareInfo&) const override { return k.prepare(desc_); }
  std::vector<InPlace> backward_in_place() const override { return {{.input = 0, .over_dout = true}}; }

  void forward(const Frame& f) const override {
    f.kernels.layer_norm(desc_, f.in(0), f.master(0), f.master(1), f.out(1), f.out(2), f.out(0));
  }

  void backward(const Frame& f) const override {
    f.kernels.layer_norm_backward(desc_, f.dout(), f.in(0), f.master(0), f.out(1), f.out(2), f.din(0),
                                  f.din(0) != nullptr && f.din_adds(0), f.gradient(0), f.gradient(1), f.adds(0),
                                  f.scratch());
    f.ready(1);
    f.ready(0);
  }

 private:
  LayerNormDesc desc_;
};

}  // namespace

std::shared_ptr<const Op> make_batch_norm(const BatchNormDesc& desc) { return std::make_shared<BatchNorm>(desc); }
std::shared_ptr<const Op> make_layer_norm(const LayerNormDesc& desc) { return std::make_shared<LayerNorm>(desc); }

}  // namespace ddprun::engine
