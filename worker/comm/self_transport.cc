#include "worker/comm/self_transport.h"

#include <cstring>
#include <mutex>
#include <optional>

#include "worker/comm/local_memory.h"

namespace ddprun::comm {
namespace {

class SelfTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string description() const override { return "self"; }
  bool crosses_hosts() const override { return false; }
  bool usable_here() const override { return true; }

  std::optional<Error> news() override {
    std::lock_guard lock(mutex_);
    if (!reason_.has_value()) return std::nullopt;
    return Error(Errc::cancelled, "aborted: " + *reason_);
  }

  Result<void> run(Operation& op) override {
    {
      std::lock_guard lock(mutex_);
      if (reason_.has_value()) return Error(Errc::cancelled, "aborted: " + *reason_);
    }
    const bool copies = op.signature.kind == OpKind::all_gather || op.signature.kind == OpKind::reduce_scatter;
    if (copies && op.in.data != op.out.data && op.in.count > 0) {
      std::memcpy(op.out.data, op.in.data, op.in.size_bytes());
    }
    if (op.signature.kind == OpKind::allocate) {
      op.allocated = memory_.allocate(op.signature.count);
      if (op.allocated == nullptr) return Error(Errc::system, "no memory for " + op.signature.describe());
    }
    return {};
  }

  void abort(const std::string& reason) override {
    std::lock_guard lock(mutex_);
    if (!reason_.has_value()) reason_ = reason;
  }

 private:
  std::mutex mutex_;
  std::optional<std::string> reason_;
  LocalMemory memory_;
};

}  // namespace

std::unique_ptr<Transport> make_self_transport() { return std::make_unique<SelfTransport>(); }

}  // namespace ddprun::comm
