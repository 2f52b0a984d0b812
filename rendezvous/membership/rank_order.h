#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::rendezvous {

// "node2" < "node10": runs of digits compare as numbers.
bool natural_less(std::string_view a, std::string_view b);

struct RankCandidate {
  std::optional<std::int64_t> hint;   // --node-rank
  std::optional<std::int64_t> place;  // group rank in the last round
  std::string_view topology_key;
  std::string_view host;
  std::uint64_t arrival = 0;
};

// The order of group ranks: indices into `nodes`. Pure and stable:
//   1. nodes of the last round keep their places; newcomers fill the holes that lost nodes left (same topology key
//   first),
//      so a spare takes the ranks of the node that it replaces and nobody else moves;
//   2. further newcomers, by topology key, natural host name, arrival, go behind the last node with their key, else
//   last;
//   3. hints win over all of it: hinted nodes first, by hint.
std::vector<std::size_t> rank_order(const std::vector<RankCandidate>& nodes);

}  // namespace ddprun::rendezvous
