#include "worker/engine/ops/ops.h"

namespace ddprun::engine {
namespace {

class Conv final : public Op {
 public:
  explicit Conv(const ConvDesc& desc) : desc_(desc) {}

  const char* kind() const override { return "conv2d"; }
  std::uint32_t backward_reads_inputs() const override { return 1; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  std::size_t prepare(Kernels& k, const PrepareInfo&) const override { return k.prepare(desc_); }

  void forward(const Frame& f) const override {
    f.kernels.conv_forward(desc_, f.in(0), f.weight(0), f.out(), f.scratch());
  }

  void backward(const Frame& f) const override {
    if (Master* dw = f.gradient(0)) {
      f.kernels.conv_backward_weight(desc_, f.in(0), f.dout(), dw, f.adds(0), f.scratch());
    }
    f.ready(0);
    if (void* dx = f.din(0)) {
      f.kernels.conv_backward_data(desc_, f.dout(), f.weight(0), dx, f.scratch());
    }
  }

 private:
  ConvDesc desc_;
};

}  // namespace

std::shared_ptr<const Op> make_conv(const ConvDesc& desc) { return std::make_shared<Conv>(desc); }

}  // namespace ddprun::engine
