#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/types.h"

namespace ddprun::rendezvous {

// A run id of which workers may live, and how long silence must last until they are dead.
struct KnownWorld {
  RunId run_id;
  Round round;
  std::chrono::milliseconds lost_after{0};
  bool operator==(const KnownWorld&) const = default;
};

// What a daemon leaves for the next one on its port, so that it forms no round of a run id before the world that it
// does not know has ended: text, one line "LOST_AFTER_MS ROUND RUN_ID_IN_HEX" a world, after a heading with a version.
// Written as a new file that replaces the old one; not synced to the disk, since a host that crashes starts its daemon
// later than T_lost.

// Errors: malformed (not such a file, or cut short), system. A file that does not exist is empty.
Result<std::vector<KnownWorld>> read_state(const std::string& path);
// Errors: system.
Result<void> write_state(const std::string& path, const std::vector<KnownWorld>& worlds);

}  // namespace ddprun::rendezvous
