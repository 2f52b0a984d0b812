#include "worker/engine/ops/ops.h"

namespace ddprun::engine {
namespace {

// inputs: logits, targets; outputs: loss (f64), log_sum.
class CrossEntropy final : public Op {
 public:
  explicit CrossEntropy(const CrossEntropyDesc& desc) : desc_(desc) {}
  const char* kind() const override { return "cross_entropy"; }
  std::uint32_t backward_reads_inputs() const override { return 3; }
  std::uint32_t backward_reads_outputs() const override { return 2; }
  std::vector<InPlace> backward_in_place() const override { return {{.input = 0, .over_dout = false, .source = 0}}; }
  std::size_t prepare(Kernels& k, const PrepareInfo&) const override { return k.prepare(desc_); }
  void forward(const Frame& f) const override {
    f.kernels.cross_entropy(desc_, f.in(0), static_cast<const std::int32_t*>(f.in(1)), static_cast<double*>(f.out(0)),
                            f.out(1), f.scratch());
  }
  void backward(const Frame& f) const override {
    if (f.din(0)) {
      f.kernels.cross_entropy_backward(desc_, f.in(0), static_cast<const std::int32_t*>(f.in(1)), f.out(1),
                                       f.loss_scale, f.din(0));
    }
  }

 private:
  CrossEntropyDesc desc_;
};

class Mse final : public Op {
 public:
  explicit Mse(std::int64_t count) : count_(count) {}
  const char* kind() const override { return "mse"; }
  std::uint32_t backward_reads_inputs() const override { return 3; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  std::vector<InPlace> backward_in_place() const override { return {{.input = 0, .over_dout = false, .source = 0}}; }
  void forward(const Frame& f) const override {
    f.kernels.mse(count_, f.in(0), f.in(1), static_cast<double*>(f.out(0)));
  }
  void backward(const Frame& f) const override {
    if (f.din(0)) f.kernels.mse_backward(count_, f.in(0), f.in(1), f.loss_scale, f.din(0));
  }

 private:
  std::int64_t count_;
};

}  // namespace

std::shared_ptr<const Op> make_cross_entropy(const CrossEntropyDesc& desc) {
  return std::make_shared<CrossEntropy>(desc);
}
std::shared_ptr<const Op> make_mse(std::int64_t count) { return std::make_shared<Mse>(count); }

}  // namespace ddprun::engine
