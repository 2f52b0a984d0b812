#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>

namespace ddprun {

// Runs `on_expiry` (typically: cancel a socket) when a time limit passes, and again every 20 ms until it is destroyed.
// The state is shared: an expired timer's handler may already be queued when the awaiting frame goes away.
class Deadline {
 public:
  Deadline(const boost::asio::any_io_executor& executor, std::chrono::milliseconds limit,
           std::function<void()> on_expiry);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  bool expired() const;  // tells "too late" from "cancelled by someone else"

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddprun
