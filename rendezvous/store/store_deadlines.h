#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "common/clock.h"
#include "rendezvous/store/store_connection.h"

namespace ddprun::rendezvous {

// Connections that have the same time for something, the oldest first. A connection is in one such list at most, and is
// taken out before it goes.
class StoreDeadlines {
 public:
  // `late` must take the connection out.
  StoreDeadlines(boost::asio::io_context& io, std::chrono::milliseconds time,
                 std::function<void(StoreConnection&)> late);

  void add(StoreConnection& connection);
  static void remove(StoreConnection& connection);  // from whichever it is in
  bool has(const StoreConnection& connection) const { return connection.list_ == this; }
  void close();

 private:
  void arm();
  void look();

  const std::chrono::milliseconds time_;
  std::function<void(StoreConnection&)> late_;
  std::shared_ptr<boost::asio::steady_timer> timer_;
  bool armed_ = false;
  StoreConnection* first_ = nullptr;
  StoreConnection* last_ = nullptr;
};

}  // namespace ddprun::rendezvous
