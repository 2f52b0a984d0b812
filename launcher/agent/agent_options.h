#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/types.h"
#include "launcher/life/node_options.h"

namespace ddprun::launcher {

// Of NodeOptions, `endpoint` is here: c10d: the rendezvous; static: master address and port. Port 0: the kernel's
// choice (we host).
struct AgentOptions : NodeOptions {
  bool standalone = false;      // embedded rendezvous on loopback, port of the kernel's choice; endpoint is ignored
  std::optional<bool> is_host;  // --rdzv-conf is_host; unset: whoever can bind the endpoint
  std::string role = "default";
  std::optional<std::int64_t> node_rank;     // --node-rank if it was given; static: required
  std::string local_addr;                    // --local-addr; "" = our side of the connection to the rendezvous
  std::optional<std::uint16_t> master_port;  // explicit --master-port: kept over restarts; unset: new each round
  std::uint16_t first_port = 0;              // range for the ports that we choose; 0 = the kernel's choice
  std::uint16_t last_port = 0;
  // false: MASTER_PORT is reserved until the workers start, then free: worker rank 0 binds it itself (c10d only).
  bool serve_worker_store = true;
  std::chrono::milliseconds read_timeout{60'000};  // until the rendezvous answers at all
  std::uint16_t endpoint_ports = 1;  // the rendezvous may be at any of so many ports from the endpoint's on
  bool serve_own_run_only = false;   // what is hosted here is for our run id alone
  std::string topology_key;          // nodes with the same key get neighbouring ranks
};

}  // namespace ddprun::launcher
