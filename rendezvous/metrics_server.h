#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>

#include "common/tcp.h"
#include "rendezvous/server/server.h"

namespace ddprun::rendezvous {

// HTTP/1.1 for monitoring: GET /metrics (OpenMetrics text), /healthz (the loop runs), /readyz (the port is served).
// Everything else: 404 or 405. At most kMaxConnections at once: the oldest goes for a new one. Each request within
// kLimit.
class MetricsServer {
 public:
  static constexpr std::size_t kMaxConnections = 64;
  static constexpr std::chrono::seconds kLimit{5};

  MetricsServer(boost::asio::io_context& io, Listener listener, RendezvousServer& server);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  std::uint16_t port() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
