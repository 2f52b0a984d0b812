#include "rendezvous/membership/tombstones.h"

namespace ddprun::rendezvous {

void Tombstones::add(const NodeId& node, std::string_view why, Word final) {
  why = why.substr(0, kWhyKept);
  if (!last_why_ || *last_why_ != why) last_why_ = std::make_shared<const std::string>(why);
  Tombstone stone;
  stone.number = ++numbers_;
  stone.why = last_why_;
  stone.final = std::move(final);
  order_.emplace_back(node, stone.number);
  stones_.insert_or_assign(node, std::move(stone));
  while (order_.size() > kKept) {
    // A node that went, came and went again has a later entry, which counts.
    const auto& [oldest, number] = order_.front();
    if (const auto found = stones_.find(oldest); found != stones_.end() && found->second.number == number) {
      stones_.erase(found);
    }
    order_.pop_front();
  }
}

const Tombstones::Tombstone* Tombstones::find(const NodeId& node) const {
  const auto found = stones_.find(node);
  return found == stones_.end() ? nullptr : &found->second;
}

}  // namespace ddprun::rendezvous
