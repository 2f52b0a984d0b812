#pragma once

#include <cstdint>

#include "common/types.h"

namespace ddprun {

// A node's place in one round: what the rendezvous decides, an agent is told and a worker finds in its environment.
struct RankSlice {
  Round round;
  GroupRank group_rank;
  std::int64_t group_world_size = 1;
  Rank first_rank;  // of this node; local rank i is first_rank + i
  std::int64_t world_size = 1;
  std::int64_t first_role_rank = 0;
  std::int64_t role_world_size = 1;
  std::int64_t restart_count = 0;
  Endpoint master;  // where the workers' store of group rank 0 is
};

}  // namespace ddprun
