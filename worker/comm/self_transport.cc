#include "worker/comm/self_transport.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

namespace ddprun::comm {
namespace {

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class SelfTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string description() const override { return "self"; }
  bool crosses_hosts() const override { return false; }
  bool usable_here() const override { return true; }

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
      constexpr std::size_t kPage = 4096;
      const std::size_t size = (op.signature.count + kPage - 1) / kPage * kPage;
      auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, size == 0 ? kPage : size));
      if (memory == nullptr) {
        return Error(Errc::system, "no memory for " + op.signature.describe() + ": allocation failed");
      }
      std::memset(memory, 0, size);
      memory_.emplace_back(memory);
      op.allocated = memory;
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
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
};

}  // namespace

std::unique_ptr<Transport> make_self_transport() { return std::make_unique<SelfTransport>(); }

}  // namespace ddprun::comm
