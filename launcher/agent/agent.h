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
#include "launcher/agent/agent_options.h"
#include "launcher/agent/services.h"
#include "launcher/life/job_outcome.h"
#include "launcher/process/worker_group.h"

namespace ddprun::launcher {

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
  RunId run_id;
};

struct AgentHooks {
  std::function<std::unique_ptr<WorkerGroup>()> make_group;
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
  // stop(): leave the job, send `signal` to the workers once, wait shutdown_timeout, SIGKILL. A second call ends the
  //         wait: SIGKILL at once.
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
