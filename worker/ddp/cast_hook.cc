#include <utility>

#include "common/check.h"
#include "worker/comm/reduce_kernels.h"
#include "worker/ddp/comm_hook.h"

namespace ddprun::ddp {
namespace {

// Rounded once here, summed and divided in f32 by the communicator, rounded once more: inf only where the mean itself
// (or one rank's gradient) does not fit, while torch's hook can overflow in the sum.
class CastHook final : public CommHook {
 public:
  CastHook(comm::DType wire, CastElements cast) : wire_(wire), cast_(std::move(cast)) {}

  std::string_view name() const override { return wire_ == comm::DType::f16 ? "fp16" : "bf16"; }

  Result<void> prepare(comm::Communicator& communicator, std::span<const BucketView> buckets) override {
    work_.resize(buckets.size());
    for (const BucketView& view : buckets) {
      comm::Block block = view.buffer;
      if (view.buffer.dtype == comm::DType::f32) {
        auto memory = communicator.allocate(view.buffer.count * comm::size_of(wire_));
        if (!memory) return memory.error().with_context("memory for compressed gradients");
        block = comm::Block{*memory, view.buffer.count, wire_};
      }
      wire_blocks_.push_back(block);
    }
    return {};
  }

  Result<void> start(comm::Communicator& communicator, const BucketView& view) override {
    const comm::Block& wire = wire_blocks_[view.index];
    if (wire.data != view.buffer.data) {
      if (cast_) {
        cast_(comm::DType::f32, wire_, view.buffer.data, wire.data, wire.count);
      } else {
        comm::narrow(static_cast<const float*>(view.buffer.data), wire.data, wire.count, wire_, 1.0f);
      }
    }
    work_[view.index] = communicator.all_reduce(wire, comm::Reduce::avg);
    return {};
  }

  Result<void> finish(comm::Communicator&, const BucketView& view) override {
    Result<void> ok = std::exchange(work_[view.index], comm::Work()).wait();
    const comm::Block& wire = wire_blocks_[view.index];
    if (ok && wire.data != view.buffer.data) {
      if (cast_) {
        cast_(wire_, comm::DType::f32, wire.data, view.buffer.data, wire.count);
      } else {
        comm::widen(wire.data, static_cast<float*>(view.buffer.data), wire.count, wire_, 1.0f);
      }
    }
    return ok;
  }

 private:
  comm::DType wire_;
  CastElements cast_;
  std::vector<comm::Block> wire_blocks_;  // by bucket; the bucket's own where it goes as it is
  std::vector<comm::Work> work_;
};

}  // namespace

std::unique_ptr<CommHook> make_cast_hook(comm::DType wire, CastElements cast) {
  CHECK(wire == comm::DType::f16 || wire == comm::DType::bf16, "compression to f16 or bf16 only");
  return std::make_unique<CastHook>(wire, std::move(cast));
}

}  // namespace ddprun::ddp
