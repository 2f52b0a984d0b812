#include "worker/comm/tcp_transport.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "worker/comm/local_memory.h"

namespace ddprun::comm {
namespace {

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(std::unique_ptr<TcpRing> ring) : ring_(std::move(ring)) {}

  int rank() const override { return ring_->rank(); }
  int world_size() const override { return ring_->size(); }
  std::string description() const override { return "TCP ring, " + std::to_string(ring_->size()) + " ranks"; }
  bool crosses_hosts() const override { return true; }
  bool usable_here() const override { return ring_->usable_here(); }
  void abort(const std::string& reason) override { ring_->abort(reason); }
  std::optional<Error> news() override { return ring_->news(); }

  Result<void> run(Operation& op) override {
    if (auto told = ring_->news()) return *told;
    const int divisor = op.signature.reduce == Reduce::avg ? ring_->size() : 1;
    auto* in = static_cast<std::byte*>(op.in.data);
    auto* out = static_cast<std::byte*>(op.out.data);
    switch (op.signature.kind) {
      case OpKind::barrier:
        return ring_->barrier(op);
      case OpKind::allocate: {
        Result<void> same = ring_->agree(op);
        if (!same) return same;
        op.allocated = memory_.allocate(op.signature.count);
        if (op.allocated == nullptr) {
          return ring_->fail(
              Error(Errc::system, "no memory for " + op.signature.describe() + " on rank " + std::to_string(rank())));
        }
        return {};
      }
      case OpKind::all_reduce:
        return ring_->all_reduce(op, in, op.in.count, divisor);
      case OpKind::reduce_scatter:
        return ring_->reduce_scatter(op, parts_of(in, op.out.size_bytes()), out, divisor);
      case OpKind::all_gather: {
        const auto parts = parts_of(out, op.in.size_bytes());
        std::byte* mine = parts[static_cast<std::size_t>(rank())].data;
        if (mine != in && op.in.count > 0) std::memmove(mine, in, op.in.size_bytes());
        return ring_->all_gather(op, parts);
      }
      case OpKind::broadcast:
        return ring_->broadcast(op, in, op.in.size_bytes(), op.signature.root);
    }
    return {};
  }

 private:
  std::vector<TcpRing::Part> parts_of(std::byte* all, std::size_t each) const {
    std::vector<TcpRing::Part> parts;
    for (int i = 0; i < ring_->size(); ++i) parts.push_back({all + static_cast<std::size_t>(i) * each, each});
    return parts;
  }

  std::unique_ptr<TcpRing> ring_;
  LocalMemory memory_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(std::unique_ptr<TcpRing> ring) {
  return std::make_unique<TcpTransport>(std::move(ring));
}

}  // namespace ddprun::comm
