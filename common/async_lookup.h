#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <optional>
#include <string>

#include "common/lookup.h"

namespace ddprun {

// Lookup for a coroutine. One question at a time.
class AsyncLookup {
 public:
  explicit AsyncLookup(boost::asio::io_context& io) : io_(io) {}

  // `limit`: 0 = none. Errors: those of Lookup::answer(), system (no descriptor, no room to watch it), timed_out,
  // cancelled (by cancel(), also before the call: a cancelled object asks nothing any more). Never throws. This object
  // must live until it has returned.
  boost::asio::awaitable<Result<Lookup::Addresses>> ask(std::string host, std::chrono::milliseconds limit);
  // Ends the wait at once; what the resolver does then concerns nobody.
  void cancel();

 private:
  boost::asio::io_context& io_;
  std::optional<boost::asio::posix::stream_descriptor> answer_;
  bool cancelled_ = false;
};

}  // namespace ddprun
