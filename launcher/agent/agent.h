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
#include "common/rank_slice.h"
#include "common/result.h"
#include "common/types.h"
#include "launcher/agent/agent_options.h"
#include "launcher/agent/services.h"
#include "launcher/life/job_outcome.h"
#include "launcher/process/worker_group.h"

namespace ddprun::launcher {

struct AgentHooks {
  std::function<std::unique_ptr<WorkerGroup>()> make_group;
  // This node's place in a round -> what to start. Errors end the job on this node with Error's sentence (exit 126/127
  // by `exit_code`).
  std::function<Result<std::vector<WorkerSpec>>(const RankSlice&)> make_specs;
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
