#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "common/types.h"

namespace ddprun::rendezvous {

// Whose each node of a job is: that of the agent which spoke for it first, known by its session key. The keys are never
// shown. Pure.
class SessionKeys {
 public:
  // The first key that comes for a node is the right one.
  bool may_speak(const NodeId& node, const std::string& key);
  // Nodes come and go: once there are many more keys than the `nodes` that are here, those go for which `keep` is
  // false.
  template <typename Keep>
  void forget_others(std::size_t nodes, Keep keep) {
    if (keys_.size() < kKept + 4 * nodes) return;
    std::erase_if(keys_, [&](const auto& entry) { return !keep(entry.first); });
  }

 private:
  static constexpr std::size_t kKept = 4096;
  std::unordered_map<NodeId, std::string> keys_;
};

}  // namespace ddprun::rendezvous
