#include "worker/engine/ops/ops.h"

namespace ddprun::engine {
namespace {

// outputs: y, index.
class MaxPool final : public Op {
 public:
  explicit MaxPool(const PoolDesc& desc) : desc_(desc) {}
  const char* kind() const override { return "max_pool"; }
  std::uint32_t backward_reads_inputs() const override { return 0; }
  std::uint32_t backward_reads_outputs() const override { return 2; }
  bool can_add(std::size_t) const override { return true; }
  void forward(const Frame& f) const override {
    f.kernels.max_pool(desc_, f.in(0), f.out(0), static_cast<std::uint8_t*>(f.out(1)));
  }
  void backward(const Frame& f) const override {
    if (f.din(0)) {
      f.kernels.max_pool_backward(desc_, f.dout(), static_cast<const std::uint8_t*>(f.out(1)), f.din(0), f.din_adds(0));
    }
  }

 private:
  PoolDesc desc_;
};

class MeanPool final : public Op {
 public:
  MeanPool(std::int64_t n, std::int64_t positions, std::int64_t channels)
      : n_(n), positions_(positions), channels_(channels) {}
  const char* kind() const override { return "mean_pool"; }
  std::uint32_t backward_reads_inputs() const override { return 0; }
  std::uint32_t backward_reads_outputs() const override { return 0; }
  bool can_add(std::size_t) const override { return true; }
  void forward(const Frame& f) const override { f.kernels.mean_pool(n_, positions_, channels_, f.in(0), f.out()); }
  void backward(const Frame& f) const override {
    if (f.din(0)) f.kernels.mean_pool_backward(n_, positions_, channels_, f.dout(), f.din(0), f.din_adds(0));
  }

 private:
  std::int64_t n_, positions_, channels_;
};

}  // namespace

std::shared_ptr<const Op> make_max_pool(const PoolDesc& desc) { return std::make_shared<MaxPool>(desc); }
std::shared_ptr<const Op> make_mean_pool(std::int64_t n, std::int64_t positions, std::int64_t channels) {
  return std::make_shared<MeanPool>(n, positions, channels);
}

}  // namespace ddprun::engine
