#include "worker/comm/shm_transport.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "worker/comm/cut.h"
#include "worker/comm/reduce_kernels.h"

namespace ddprun::comm {
namespace {

constexpr std::size_t kLine = 64;

std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(std::unique_ptr<ShmGroup> group)
      : group_(std::move(group)),
        size_(group_->local_size()),
        me_(group_->local_rank()),
        sources_(static_cast<std::size_t>(size_)),
        destinations_(static_cast<std::size_t>(std::max(size_, 2))) {}

  int rank() const override { return group_->rank(); }
  int world_size() const override { return size_; }
  std::string description() const override { return "shared memory, " + std::to_string(size_) + " ranks"; }
  bool crosses_hosts() const override { return false; }
  bool usable_here() const override { return group_->usable_here(); }
  void abort(const std::string& reason) override { group_->abort(reason); }
  std::optional<Error> news() override { return group_->news(); }

  Result<void> run(Operation& op) override {
    if (auto told = group_->verdict()) return *told;
    switch (op.signature.kind) {
      case OpKind::barrier:
        return group_->arrive(op);
      case OpKind::allocate: {
        auto memory = group_->allocate(op);
        if (!memory) return memory.error();
        op.allocated = *memory;
        return {};
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

 private:
  std::size_t my_part() const { return static_cast<std::size_t>(me_); }
  int divisor(const Operation& op) const { return op.signature.reduce == Reduce::avg ? size_ : 1; }

  void reduce_into(const Operation& op, std::size_t destination_count, std::size_t count) {
    ReduceArgs args;
    args.sources = sources_.data();
    args.source_count = static_cast<std::size_t>(size_);
    args.destinations = destinations_.data();
    args.destination_count = destination_count;
    args.count = count;
    args.dtype = op.signature.dtype;
    args.op = op.signature.reduce;
    args.divisor = divisor(op);
    reduce(args);
  }

  bool all_owned(bool in) const {
    for (int p = 0; p < size_; ++p) {
      if ((in ? group_->in_of(p) : group_->out_of(p)) == ShmGroup::kForeign) return false;
    }
    return true;
  }
  bool none_owned() const {
    for (int p = 0; p < size_; ++p) {
      if (group_->in_of(p) != ShmGroup::kForeign) return false;
    }
    return true;
  }

  Result<void> all_reduce(Operation& op) {
    const std::size_t element = size_of(op.signature.dtype), count = op.in.count;
    const ShmGroup::Handle mine = group_->find(op.in.data, op.in.size_bytes());
    const bool small = op.in.size_bytes() <= ShmGroup::kFlatBytes;
    const Cut parts = Cut::at_lines(count, static_cast<std::size_t>(size_), element);
    if (mine == ShmGroup::kForeign) small ? put_flat(op) : stage_in(op, parts, 0);
    Result<void> ok = group_->arrive(op, mine);
    if (!ok) return ok;
    if (!all_owned(true)) {
      if (small) return flat_reduce(op, 0, count, op.in.data, mine);
      return staged(op, parts, bytes(op.in.data) + parts.begin(my_part()) * element, true, mine);
    }
    for (int p = 0; p < size_; ++p) {
      destinations_[static_cast<std::size_t>(p)] =
          group_->address(group_->in_of(p), p) + parts.begin(my_part()) * element;
      sources_[static_cast<std::size_t>(p)] = destinations_[static_cast<std::size_t>(p)];
    }
    reduce_into(op, static_cast<std::size_t>(size_), parts.size(my_part()));
    return group_->step(op);
  }

  Result<void> reduce_scatter(Operation& op) {
    const std::size_t element = size_of(op.signature.dtype), count = op.out.count;
    const bool small = op.in.size_bytes() <= ShmGroup::kFlatBytes;
    const Cut parts{count, op.in.count};
    const ShmGroup::Handle mine = group_->find(op.in.data, op.in.size_bytes());
    if (mine == ShmGroup::kForeign) small ? put_flat(op) : stage_in(op, parts, 0);
    Result<void> ok = group_->arrive(op, mine);
    if (!ok) return ok;
    if (!all_owned(true)) {
      if (small) return flat_reduce(op, static_cast<std::size_t>(me_) * count, count, op.out.data, mine);
      return staged(op, parts, bytes(op.out.data), false, mine);
    }
    for (int p = 0; p < size_; ++p) {
      sources_[static_cast<std::size_t>(p)] = group_->address(group_->in_of(p), p) + parts.begin(my_part()) * element;
    }
    destinations_[0] = op.out.data;
    reduce_into(op, 1, count);
    return group_->step(op);
  }

  void put_flat(const Operation& op) {
    if (op.in.count > 0) std::memcpy(group_->flat(op, me_), op.in.data, op.in.size_bytes());
  }

  // After arrive(): everybody combines elements [first, first + count) of all flat buffers into `to`. Ranks whose
  // memory is ours have put nothing in yet.
  Result<void> flat_reduce(Operation& op, std::size_t first, std::size_t count, void* to, ShmGroup::Handle mine) {
    const std::size_t element = size_of(op.signature.dtype);
    if (!none_owned()) {
      if (mine != ShmGroup::kForeign) put_flat(op);
      Result<void> ok = group_->step(op);
      if (!ok) return ok;
    }
    for (int p = 0; p < size_; ++p) sources_[static_cast<std::size_t>(p)] = group_->flat(op, p) + first * element;
    destinations_[0] = to;
    reduce_into(op, 1, count);
    return {};
  }

  std::size_t stage_count(const Operation& op) const {  // elements that one rank gets from another at a time
    return group_->staging_bytes() / static_cast<std::size_t>(size_) / kLine * kLine / size_of(op.signature.dtype);
  }

  // Puts segment k of everybody's part into this rank's input buffer k % 2.
  void stage_in(const Operation& op, const Cut& parts, std::size_t k) {
    const std::size_t element = size_of(op.signature.dtype), segment = stage_count(op);
    std::byte* buffer = group_->staging(static_cast<int>(k % 2), me_);
    for (int p = 0; p < size_; ++p) {
      const std::size_t size = parts.size(static_cast<std::size_t>(p));
      if (p == me_ || k * segment >= size) continue;
      const std::size_t n = std::min(segment, size - k * segment);
      std::memcpy(buffer + static_cast<std::size_t>(p) * segment * element,
                  bytes(op.in.data) + (parts.begin(static_cast<std::size_t>(p)) + k * segment) * element, n * element);
    }
  }

  // stage_in(0) was done by the ranks whose memory is foreign, before they arrived. One step for each segment: while
  // segment k is combined, segment k + 1 is already put in; results are taken out after the step.
  Result<void> staged(Operation& op, const Cut& parts, std::byte* result, bool gather, ShmGroup::Handle mine) {
    const std::size_t element = size_of(op.signature.dtype), segment = stage_count(op);
    if (!none_owned()) {  // some ranks could have gone direct and have put nothing in yet
      if (mine != ShmGroup::kForeign) stage_in(op, parts, 0);
      Result<void> ok = group_->step(op);
      if (!ok) return ok;
    }
    const std::size_t segments = (parts.stride + segment - 1) / segment;
    for (std::size_t k = 0; k < segments; ++k) {
      if (k + 1 < segments) stage_in(op, parts, k + 1);
      const std::size_t my_size = parts.size(my_part());
      if (k * segment < my_size) {
        const std::size_t n = std::min(segment, my_size - k * segment);
        for (int p = 0; p < size_; ++p) {
          sources_[static_cast<std::size_t>(p)] =
              p == me_
                  ? bytes(op.in.data) + (parts.begin(my_part()) + k * segment) * element
                  : group_->staging(static_cast<int>(k % 2), p) + static_cast<std::size_t>(me_) * segment * element;
        }
        destinations_[0] = result + k * segment * element;
        if (gather) destinations_[1] = group_->staging(static_cast<int>(2 + k % 2), me_);
        reduce_into(op, gather ? 2 : 1, n);
      }
      Result<void> ok = group_->step(op);
      if (!ok) return ok;
      for (int p = 0; gather && p < size_; ++p) {
        const std::size_t size = parts.size(static_cast<std::size_t>(p));
        if (p == me_ || k * segment >= size) continue;
        const std::size_t n = std::min(segment, size - k * segment);
        std::memcpy(bytes(op.in.data) + (parts.begin(static_cast<std::size_t>(p)) + k * segment) * element,
                    group_->staging(static_cast<int>(2 + k % 2), p), n * element);
      }
    }
    return {};
  }

  Result<void> all_gather(Operation& op) {
    const std::size_t part = op.in.size_bytes();
    std::byte* own_place = bytes(op.out.data) + static_cast<std::size_t>(me_) * part;
    if (part <= ShmGroup::kFlatBytes) {
      if (part > 0) std::memcpy(group_->flat(op, me_), op.in.data, part);
      Result<void> ok = group_->arrive(op);
      if (!ok) return ok;
      for (int p = 0; p < size_ && part > 0; ++p) {
        std::memcpy(bytes(op.out.data) + static_cast<std::size_t>(p) * part, group_->flat(op, p), part);
      }
      return {};
    }
    Result<void> ok = group_->arrive(op, ShmGroup::kForeign, group_->find(op.out.data, op.out.size_bytes()));
    if (!ok) return ok;
    if (all_owned(false)) {
      for (int i = 0; i < size_; ++i) {
        const int p = (me_ + i) % size_;  // not everybody into the same memory at once
        std::byte* place = group_->address(group_->out_of(p), p) + static_cast<std::size_t>(me_) * part;
        if (place != op.in.data) std::memcpy(place, op.in.data, part);
      }
      return group_->step(op);
    }
    if (own_place != op.in.data) std::memmove(own_place, op.in.data, part);
    const std::size_t segment = group_->staging_bytes();
    for (std::size_t at = 0, k = 0; at < part; at += segment, ++k) {
      const std::size_t n = std::min(segment, part - at);
      const int buffer = static_cast<int>(2 + k % 2);
      std::memcpy(group_->staging(buffer, me_), own_place + at, n);
      ok = group_->step(op);
      if (!ok) return ok;
      for (int p = 0; p < size_; ++p) {
        if (p == me_) continue;
        std::memcpy(bytes(op.out.data) + static_cast<std::size_t>(p) * part + at, group_->staging(buffer, p), n);
      }
    }
    return {};
  }

  Result<void> broadcast(Operation& op) {
    const std::size_t size = op.in.size_bytes();
    int root = 0;  // as a local rank; the world is this host
    while (group_->rank_of(root) != op.signature.root) ++root;
    if (size <= ShmGroup::kFlatBytes) {
      if (me_ == root && size > 0) std::memcpy(group_->flat(op, me_), op.in.data, size);
      Result<void> ok = group_->arrive(op);
      if (ok && me_ != root && size > 0) std::memcpy(op.in.data, group_->flat(op, root), size);
      return ok;
    }
    const bool is_root = me_ == root;
    Result<void> ok = group_->arrive(op, is_root ? group_->find(op.in.data, size) : ShmGroup::kForeign);
    if (!ok) return ok;
    if (group_->in_of(root) != ShmGroup::kForeign) {
      if (!is_root) std::memcpy(op.in.data, group_->address(group_->in_of(root), root), size);
      return group_->step(op);
    }
    const std::size_t segment = group_->staging_bytes();
    for (std::size_t at = 0, k = 0; at < size; at += segment, ++k) {
      const std::size_t n = std::min(segment, size - at);
      const int buffer = static_cast<int>(2 + k % 2);
      if (is_root) std::memcpy(group_->staging(buffer, me_), bytes(op.in.data) + at, n);
      ok = group_->step(op);
      if (!ok) return ok;
      if (!is_root) std::memcpy(bytes(op.in.data) + at, group_->staging(buffer, root), n);
    }
    return {};
  }

  std::unique_ptr<ShmGroup> group_;
  int size_;
  int me_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(std::unique_ptr<ShmGroup> group) {
  return std::make_unique<ShmTransport>(std::move(group));
}

}  // namespace ddprun::comm
