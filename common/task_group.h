#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <list>
#include <memory>

namespace ddprun {

// Owns child coroutines on one executor. stop() cancels all; join() resumes after the last has ended and rethrows the
// first failure. A child that ends by operation_aborted has ended well. The group must be joined (or be empty) before
// it is destroyed, except after the io_context has stopped for good.
class TaskGroup {
 public:
  explicit TaskGroup(const boost::asio::any_io_executor& executor);
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  void spawn(boost::asio::awaitable<void> task);
  void stop();
  bool empty() const;
  boost::asio::awaitable<void> join();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddprun
