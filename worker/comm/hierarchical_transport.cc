#include "worker/comm/hierarchical_transport.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "worker/comm/cut.h"
#include "worker/comm/reduce_kernels.h"

namespace ddprun::comm {
namespace {

constexpr std::size_t kBounceBytes = std::size_t{4} << 20;  // of each rank, for memory that is not ours
constexpr std::size_t kLine = 64;

std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

class HierarchicalTransport final : public Transport {
 public:
  HierarchicalTransport(std::unique_ptr<ShmGroup> group, std::unique_ptr<TcpRing> ring, HostMap hosts)
      : group_(std::move(group)), ring_(std::move(ring)), hosts_(std::move(hosts)), local_(group_->local_size()) {
    // A failure on one side is news for the other. Ranks without a ring hear of it through shared memory, a little
    // later: they wait a little longer, so that the better message wins.
    group_->set_grace(std::chrono::seconds(4));
    if (ring_ == nullptr) return;
    group_->set_watch([this] { return ring_->news(); });
    ring_->set_watch([this] { return group_->verdict(); });
  }

  ~HierarchicalTransport() override {
    group_->set_watch({});
    if (ring_ != nullptr) ring_->set_watch({});
  }

  Result<void> prepare(TimePoint deadline) {
    Operation op;
    op.signature.kind = OpKind::allocate;
    op.signature.count = kBounceBytes;
    op.set_deadline(deadline);
    auto memory = group_->allocate(op);
    if (!memory) return memory.error();
    bounce_ = group_->find(*memory, kBounceBytes);
    return {};
  }

  int rank() const override { return group_->rank(); }
  int world_size() const override { return hosts_.world_size(); }
  std::string description() const override {
    return "shared memory and TCP, " + std::to_string(hosts_.world_size()) + " ranks on " +
           std::to_string(hosts_.hosts()) + " hosts";
  }
  bool crosses_hosts() const override { return true; }
  bool usable_here() const override { return group_->usable_here(); }

  void abort(const std::string& reason) override {
    group_->abort(reason);
    if (ring_ != nullptr) ring_->abort(reason);
  }

  std::optional<Error> news() override {
    auto told = group_->news();
    if (!told && ring_ != nullptr) told = ring_->news();
    if (told) return spread(*told);
    return std::nullopt;
  }

  Result<void> run(Operation& op) override {
    if (auto told = group_->verdict()) return spread(*told);
    Result<void> ok = run_here(op);
    if (!ok) return spread(ok.error());
    return ok;
  }

 private:
  // An error of either side reaches the other one.
  Error spread(const Error& error) {
    const Error told = group_->fail(error);
    if (ring_ != nullptr) (void)ring_->fail(told);
    return told;
  }

  Result<void> run_here(Operation& op) {
    switch (op.signature.kind) {
      case OpKind::barrier:
        return barrier(op);
      case OpKind::allocate: {
        auto memory = group_->allocate(op);
        if (!memory) return memory.error();
        op.allocated = *memory;
        // All ranks of a host go on together: one that went ahead would blame its leader, which still waits for another
        // host.
        Result<void> ok = leader() ? ring_->agree(op) : Result<void>();
        return ok ? group_->step(op) : ok;
      }
      case OpKind::all_reduce:
        return all_reduce(op);
      case OpKind::reduce_scatter:
        return reduce_scatter(op);
      case OpKind::all_gather:
        return all_gather(op);
      case OpKind::broadcast:
        return broadcast(op);
    }
    return {};
  }

  bool leader() const { return group_->local_rank() == 0; }

  Result<void> barrier(Operation& op) {
    Result<void> ok = group_->arrive(op);
    if (!ok) return ok;
    if (leader()) ok = ring_->barrier(op);
    return ok ? group_->step(op) : ok;
  }

  // Combines `count` elements at `where` (of every local rank) over the world, in place, on all ranks of the host; this
  // rank does the chunk of its ring. The three phases overlap: while segments travel, the next ones are combined on the
  // host, and each is stored to the other ranks of the host when it comes back.
  // Ends with what the others wrote not yet seen: a step() must follow.
  Result<void> combine(Operation& op, const std::vector<ShmGroup::Handle>& where, std::size_t count) {
    if (ring_ == nullptr) return {};
    const std::size_t element = size_of(op.signature.dtype), me = static_cast<std::size_t>(group_->local_rank());
    const Cut cut = Cut::at_lines(count, static_cast<std::size_t>(hosts_.rings()), element);
    std::vector<std::byte*> chunks;  // the same elements on every local rank
    for (int p = 0; p < local_; ++p) {
      chunks.push_back(group_->address(where[static_cast<std::size_t>(p)], p) + cut.begin(me) * element);
    }
    std::vector<const void*> sources(chunks.size());
    TcpRing::Hooks hooks;
    hooks.prepare = [&](std::size_t offset, std::size_t size) {
      for (std::size_t p = 0; p < chunks.size(); ++p) sources[p] = chunks[p] + offset;
      void* to[] = {chunks[me] + offset};
      reduce(ReduceArgs{sources.data(), sources.size(), to, 1, size / element, op.signature.dtype, op.signature.reduce,
                        1});
    };
    hooks.finish = [&](std::size_t offset, std::size_t size) {
      for (std::size_t i = 1; i < chunks.size(); ++i) {
        std::memcpy(chunks[(me + i) % chunks.size()] + offset, chunks[me] + offset, size);
      }
    };
    const int divisor = op.signature.reduce == Reduce::avg ? hosts_.world_size() : 1;
    return ring_->all_reduce(op, chunks[me], cut.size(me), divisor, local_ > 1 ? &hooks : nullptr);
  }

  Result<void> all_reduce(Operation& op) {
    const std::size_t element = size_of(op.signature.dtype);
    Result<void> ok = group_->arrive(op, group_->find(op.in.data, op.in.size_bytes()));
    if (!ok) return ok;
    std::vector<ShmGroup::Handle> where;
    bool owned = true;
    for (int p = 0; p < local_; ++p) {
      where.push_back(group_->in_of(p));
      owned = owned && where.back() != ShmGroup::kForeign;
    }
    if (owned) {
      ok = combine(op, where, op.in.count);
      return ok ? group_->step(op) : ok;
    }
    return through_bounce(op, op.in.count, [&](std::size_t at, std::size_t n) {
      std::memcpy(bytes(op.in.data) + at * element, my_bounce(), n * element);
    });
  }

  Result<void> reduce_scatter(Operation& op) {
    // Pieces of the whole are combined everywhere and each rank keeps what belongs to it.
    Result<void> ok = group_->arrive(op);
    if (!ok) return ok;
    const std::size_t element = size_of(op.signature.dtype), part = op.out.count;
    const std::size_t first = static_cast<std::size_t>(rank()) * part;
    return through_bounce(op, op.in.count, [&](std::size_t at, std::size_t n) {
      const std::size_t begin = std::max(at, first), end = std::min(at + n, first + part);
      if (begin >= end) return;
      std::memcpy(bytes(op.out.data) + (begin - first) * element, my_bounce() + (begin - at) * element,
                  (end - begin) * element);
    });
  }

  // op.in piece by piece through shared memory; `take` gets each combined piece.
  template <typename Take>
  Result<void> through_bounce(Operation& op, std::size_t count, Take take) {
    const std::size_t element = size_of(op.signature.dtype), most = kBounceBytes / element;
    const std::vector<ShmGroup::Handle> where(static_cast<std::size_t>(local_), bounce_);
    for (std::size_t at = 0; at == 0 || at < count; at += most) {
      const std::size_t n = std::min(most, count - at);
      if (n > 0) std::memcpy(my_bounce(), bytes(op.in.data) + at * element, n * element);
      Result<void> ok = group_->step(op);  // everybody's piece is there
      if (ok) ok = combine(op, where, n);
      if (ok) ok = group_->step(op);  // everybody's result is there
      if (!ok) return ok;
      if (n > 0) take(at, n);
    }
    return {};
  }

  Result<void> all_gather(Operation& op) {
    Result<void> ok = group_->arrive(op);
    if (!ok) return ok;
    const std::size_t part = op.in.size_bytes();
    const std::size_t world = static_cast<std::size_t>(hosts_.world_size());
    const std::size_t most = kBounceBytes / world / kLine * kLine;
    std::byte* leaders = group_->address(bounce_, 0);
    std::byte* own_place = bytes(op.out.data) + static_cast<std::size_t>(rank()) * part;
    if (part > 0 && own_place != op.in.data) std::memmove(own_place, op.in.data, part);
    for (std::size_t at = 0; at == 0 || at < part; at += most) {
      const std::size_t n = std::min(most, part - at);
      if (n > 0) std::memcpy(leaders + static_cast<std::size_t>(rank()) * n, own_place + at, n);
      ok = group_->step(op);
      if (ok && leader()) {
        std::vector<TcpRing::Part> parts;
        for (int h = 0; h < hosts_.hosts(); ++h) {
          const auto i = static_cast<std::size_t>(h);
          parts.push_back({leaders + static_cast<std::size_t>(hosts_.first_rank[i]) * n,
                           static_cast<std::size_t>(hosts_.size[i]) * n});
        }
        ok = ring_->all_gather(op, parts);
      }
      if (ok) ok = group_->step(op);
      if (!ok) return ok;
      for (std::size_t r = 0; r < world && n > 0; ++r) {
        if (static_cast<int>(r) != rank()) std::memcpy(bytes(op.out.data) + r * part + at, leaders + r * n, n);
      }
      ok = group_->step(op);  // before the next piece overwrites this one
      if (!ok) return ok;
    }
    return {};
  }

  Result<void> broadcast(Operation& op) {
    Result<void> ok = group_->arrive(op);
    if (!ok) return ok;
    const std::size_t size = op.in.size_bytes();
    const int root_host = hosts_.host_of(op.signature.root);
    const bool is_root = op.signature.root == rank();
    std::byte* leaders = group_->address(bounce_, 0);
    for (std::size_t at = 0; at == 0 || at < size; at += kBounceBytes) {
      const std::size_t n = std::min(kBounceBytes, size - at);
      if (is_root && n > 0) std::memcpy(leaders, bytes(op.in.data) + at, n);
      ok = group_->step(op);
      if (ok && leader()) ok = ring_->broadcast(op, leaders, n, root_host);
      if (ok) ok = group_->step(op);
      if (!ok) return ok;
      if (!is_root && n > 0) std::memcpy(bytes(op.in.data) + at, leaders, n);
      ok = group_->step(op);
      if (!ok) return ok;
    }
    return {};
  }

  std::byte* my_bounce() const { return group_->address(bounce_, group_->local_rank()); }

  std::unique_ptr<ShmGroup> group_;
  std::unique_ptr<TcpRing> ring_;
  HostMap hosts_;
  int local_;
  ShmGroup::Handle bounce_ = ShmGroup::kForeign;
};

}  // namespace

int HostMap::rings() const { return *std::min_element(size.begin(), size.end()); }

int HostMap::host_of(int rank) const {
  int h = 0;
  while (rank >= first_rank[static_cast<std::size_t>(h)] + size[static_cast<std::size_t>(h)]) ++h;
  return h;
}

std::vector<int> HostMap::ring(int i) const {
  std::vector<int> ranks;
  for (int first : first_rank) ranks.push_back(first + i);
  return ranks;
}

Result<std::unique_ptr<Transport>> make_hierarchical_transport(std::unique_ptr<ShmGroup> group,
                                                               std::unique_ptr<TcpRing> ring, HostMap hosts,
                                                               TimePoint deadline) {
  auto transport = std::make_unique<HierarchicalTransport>(std::move(group), std::move(ring), std::move(hosts));
  Result<void> ready = transport->prepare(deadline);
  if (!ready) return ready.error();
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace ddprun::comm
