#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>

#include "common/options.h"

namespace ddprun::rendezvous {

// How often systemd wants to hear of us: WATCHDOG_USEC of WatchdogSec=, unless WATCHDOG_PID names another process.
std::optional<std::chrono::microseconds> watchdog_limit(const EnvLookup& env, int own_pid);

// Says so twice in each limit, from the loop that serves the agents: a loop that stands still is heard of no more, and
// systemd starts the daemon again. Does nothing without a limit.
class Watchdog {
 public:
  Watchdog(boost::asio::io_context& io, std::optional<std::chrono::microseconds> limit);

 private:
  void arm();

  boost::asio::steady_timer timer_;
  std::chrono::microseconds period_{0};
};

}  // namespace ddprun::rendezvous
