#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/types.h"
#include "rendezvous/membership/known_world.h"
#include "rendezvous/membership/membership.h"
#include "rendezvous/server/agent_connection.h"
#include "rendezvous/server/session_keys.h"

namespace ddprun::rendezvous {

// One run id as the server keeps it: what is decided, who is connected, what has changed lately.
struct Job {
  explicit Job(const RunId& run_id) : membership(run_id) {}
  Membership membership;
  Membership::Totals counted;       // what of its totals is in the server's counters
  std::optional<KnownWorld> known;  // what the state file says of it, or shall say
  std::uint64_t change = 0;         // by which change of the state file it came there
  std::vector<Send> held;           // until that change is on the disk
  std::unordered_map<NodeId, std::shared_ptr<AgentConnection>> connections;
  SessionKeys sessions;
  std::deque<std::string> events;  // the last ones, oldest first
  TimePoint last_change;
};

using Jobs = std::map<RunId, Job>;

}  // namespace ddprun::rendezvous
