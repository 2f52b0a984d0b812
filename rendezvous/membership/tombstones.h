#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/rdzv_protocol.h"
#include "common/types.h"

namespace ddprun::rendezvous {

// Nodes that are out of a job, and what each must hear if it comes back. The last kKept; what many have in common, the
// last word of a job above all, is there once.
class Tombstones {
 public:
  static constexpr std::size_t kKept = 65'536;
  static constexpr std::size_t kWhyKept = 512;  // bytes

  using Word = std::shared_ptr<const rdzv::ServerMessage>;
  struct Tombstone {
    std::uint64_t number = 0;
    std::shared_ptr<const std::string> why;
    Word final;  // what an ended job told everybody; null: the job went on
  };

  void add(const NodeId& node, std::string_view why, Word final);
  void erase(const NodeId& node) { stones_.erase(node); }
  const Tombstone* find(const NodeId& node) const;

 private:
  std::unordered_map<NodeId, Tombstone> stones_;
  std::deque<std::pair<NodeId, std::uint64_t>> order_;
  std::uint64_t numbers_ = 0;
  std::shared_ptr<const std::string> last_why_;
};

}  // namespace ddprun::rendezvous
