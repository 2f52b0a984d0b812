#pragma once

#include <chrono>

#include "common/types.h"

namespace ddprun::rendezvous {

// A run id of which workers may live, and how long silence must last until they are dead.
struct KnownWorld {
  RunId run_id;
  Round round;
  std::chrono::milliseconds lost_after{0};
  bool operator==(const KnownWorld&) const = default;
};

}  // namespace ddprun::rendezvous
