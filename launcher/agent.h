#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/types.h"
#include "launcher/job_outcome.h"
#include "launcher/patient_group.h"
#include "launcher/services.h"
#include "launcher/worker_group.h"

namespace ddprun::launcher {

enum class RendezvousBackend { c10d, static_ranks };

// --rdzv-conf. Defaults are torch 2.15's where it has the key.
struct RendezvousTimes {
  std::chrono::milliseconds join_timeout{600'000};      // until MIN nodes are here
  std::chrono::milliseconds last_call_timeout{30'000};  // after MIN, for more
  std::chrono::milliseconds close_timeout{30'000};      // exit barrier, once no worker runs any more
  std::chrono::milliseconds read_timeout{60'000};       // until the rendezvous answers at all
  std::chrono::milliseconds keep_alive_interval{5'000};
  int keep_alive_max_attempt = 3;
};

enum class OnSilence { stop, keep };  // what happens to workers when the rendezvous is silent for T_lease

struct AgentOptions {
  RunId run_id;
  RendezvousBackend backend = RendezvousBackend::c10d;
  bool standalone = false;  // embedded rendezvous on loopback, port of the kernel's choice; endpoint is ignored
  Endpoint endpoint;        // c10d: rendezvous; static: master address and port. Port 0: the kernel's choice (we host)
  std::optional<bool> is_host;  // --rdzv-conf is_host; unset: whoever can bind the endpoint
  std::int64_t nnodes_min = 1;
  std::int64_t nnodes_max = 1;
  std::int64_t nproc = 1;
  std::string role = "default";
  std::optional<std::int64_t> node_rank;     // --node-rank if it was given; static: required
  std::string local_addr;                    // --local-addr; "" = our side of the connection to the rendezvous
  std::optional<std::uint16_t> master_port;  // explicit --master-port: kept over restarts; unset: new each round
  std::uint16_t first_port = 0;              // range for the ports that we choose; 0 = the kernel's choice
  std::uint16_t last_port = 0;
  // false: MASTER_PORT is reserved until the workers start, then free: worker rank 0 binds it itself (c10d only).
  bool serve_worker_store = true;
  std::int64_t max_restarts = 0;
  RendezvousTimes times;
  OnSilence on_silence = OnSilence::stop;
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::chrono::milliseconds restart_backoff{0};        // before the first restart; doubled for each more, at most 60 s
  int crash_loop_limit = 0;                            // 0 = off; else this many attempts in a row that fail ...
  std::chrono::milliseconds crash_loop_window{5'000};  // ... within this time of their start end the job
  std::string topology_key;                            // nodes with the same key get neighbouring ranks
};

// What one round's workers need to know; the same for every worker of this node.
struct RoundContext {
  Round round;
  GroupRank group_rank;
  std::int64_t group_world_size = 1;
  Rank first_rank;  // of this node; local rank i is first_rank + i
  std::int64_t world_size = 1;
  std::int64_t local_world_size = 1;
  std::string role = "default";
  std::int64_t first_role_rank = 0;
  std::int64_t role_world_size = 1;
  Endpoint master;  // numeric host; a store is listening there
  std::int64_t restart_count = 0;
  std::int64_t max_restarts = 0;
  std::int64_t spawn_number = 0;  // how often this agent has started workers before: 0, 1, ... (log folders)
  RunId run_id;
};

struct AgentHooks {
  std::function<std::unique_ptr<PatientGroup>()> make_group;
  // RoundContext -> what to start. Errors end the job on this node with Error's sentence (exit 126/127 by `exit_code`).
  std::function<Result<std::vector<WorkerSpec>>(const RoundContext&)> make_specs;
  // The flight recorders of this node's workers, at most `max_bytes`; empty function: none.
  std::function<std::string(std::size_t max_bytes)> flight_record;
  // Somebody who lives on when this process is stopped must end the workers then, unless a later time is given before;
  // nullopt: nothing is to be watched. Empty function: nobody does.
  std::function<void(std::optional<TimePoint>)> workers_die_at;
};

// The life of one node: bind, host or connect, join, start workers, watch, restart or end. One thread, one io_context.
// Lives until run() has returned; after that nothing of it is left running.
class Agent {
 public:
  Agent(boost::asio::io_context& io, AgentOptions options, Services services, AgentHooks hooks);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Call once. Never throws; every way to end is an outcome.
  boost::asio::awaitable<JobOutcome> run();

  // From the signal handling coroutine of main(), any time, same thread:
  // stop(): leave the job, send `signal` to the workers once, wait shutdown_timeout, SIGKILL. A second call with
  // another
  //         signal is not forwarded; it ends the wait (SIGKILL at once).
  void stop(int signal);
  // forward(): send to every worker and go on.
  void forward(int signal);

  // "127.0.0.1:29400" once known: for the log line and ddpctl.
  std::string rendezvous_endpoint() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
