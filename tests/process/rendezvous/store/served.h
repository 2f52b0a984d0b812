#pragma once

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/store_client.h"
#include "common/tcp.h"
#include "rendezvous/store/store_server.h"

namespace ddprun::test {

using rendezvous::StoreServer;
using rendezvous::StoreServerOptions;
using rendezvous::StoreStats;

inline TimePoint hard_limit() { return SteadyClock::now() + std::chrono::seconds(60); }

template <typename Condition>
::testing::AssertionResult eventually(Condition condition) {
  const TimePoint limit = hard_limit();
  while (!condition()) {
    if (SteadyClock::now() > limit) return ::testing::AssertionFailure() << "did not happen within 60 s";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::testing::AssertionSuccess();
}

// A server on a thread of its own, on loopback.
class Served {
 public:
  explicit Served(StoreServerOptions options = {}, std::uint16_t port = 0) {
    ListenOptions listen{.scope = ListenScope::loopback, .address = {}, .port = port, .first_port = 0, .last_port = 0};
    auto listener = tcp_listen(listen);
    EXPECT_TRUE(listener) << listener.error().message();
    server_.emplace(context_, std::move(*listener), options);
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Served() {
    on_thread([this] { server_.reset(); });
    context_.stop();
    thread_.join();
  }
  template <typename Call>
  auto on_thread(Call call) -> decltype(call()) {
    std::packaged_task<decltype(call())()> task(std::move(call));
    auto done = task.get_future();
    boost::asio::post(context_, [&task] { task(); });
    return done.get();
  }
  StoreServer& server() { return *server_; }
  std::uint16_t port() { return server_->port(); }
  StoreStats stats() {
    return on_thread([this] { return server_->stats(); });
  }
  StoreClient client(std::string prefix = "/") {
    StoreClientOptions options;
    options.endpoint = {"127.0.0.1", port()};
    options.prefix = std::move(prefix);
    auto connected = StoreClient::connect(options);
    EXPECT_TRUE(connected) << connected.error().message();
    return std::move(*connected);
  }
  UniqueFd connect() {
    auto fd = tcp_connect({"127.0.0.1", port()}, hard_limit());
    EXPECT_TRUE(fd) << fd.error().message();
    return std::move(*fd);
  }

 private:
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{context_.get_executor()};
  std::optional<StoreServer> server_;
  std::thread thread_;
};

}  // namespace ddprun::test
