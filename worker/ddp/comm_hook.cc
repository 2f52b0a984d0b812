#include "worker/ddp/comm_hook.h"

#include <charconv>
#include <utility>

namespace ddprun::ddp {
namespace {

class PlainHook final : public CommHook {
 public:
  std::string_view name() const override { return "none"; }

  Result<void> prepare(comm::Communicator&, std::span<const BucketView> buckets) override {
    work_.resize(buckets.size());
    return {};
  }
  Result<void> start(comm::Communicator& communicator, const BucketView& view) override {
    work_[view.index] = communicator.all_reduce(view.buffer, comm::Reduce::avg);
    return {};
  }
  Result<void> finish(comm::Communicator&, const BucketView& view) override {
    return std::exchange(work_[view.index], comm::Work()).wait();
  }

 private:
  std::vector<comm::Work> work_;
};

}  // namespace

std::unique_ptr<CommHook> make_plain_hook() { return std::make_unique<PlainHook>(); }

Result<std::unique_ptr<CommHook>> make_hook(std::string_view name, CastElements cast) {
  if (name == "none") return make_plain_hook();
  if (name == "fp16") return make_cast_hook(comm::DType::f16, std::move(cast));
  if (name == "bf16") return make_cast_hook(comm::DType::bf16, std::move(cast));
  constexpr std::string_view kPowerSgd = "powersgd";
  if (name.substr(0, kPowerSgd.size()) == kPowerSgd) {
    std::string_view rest = name.substr(kPowerSgd.size());
    int rank = 1;
    bool good = rest.empty();
    if (!good && rest.front() == ':') {
      rest.remove_prefix(1);
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), rank);
      good = error == std::errc() && end == rest.data() + rest.size() && rank >= 1 && rank <= 64;
    }
    if (good) return make_power_sgd_hook(rank, 1);
  }
  return Error(Errc::invalid_argument, "compression \"" + std::string(name) +
                                           "\" is not known: none, fp16, bf16, powersgd or powersgd:RANK "
                                           "with a rank of 1 to 64");
}

}  // namespace ddprun::ddp
