#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/rdzv_protocol.h"

namespace ddprun::rendezvous {

// One connection of an agent or of ddpctl: bytes <-> messages. Decides nothing.
class AgentSession : public std::enable_shared_from_this<AgentSession> {
 public:
  struct Handlers {
    std::function<void(AgentSession&, rdzv::AgentMessage)> on_agent;
    std::function<void(AgentSession&, rdzv::OperatorMessage)> on_operator;
    // The connection is over; `lost` = closed or reset by the peer or a protocol error, not silence.
    std::function<void(AgentSession&, bool lost, const std::string& why)> on_end;
  };

  AgentSession(boost::asio::ip::tcp::socket socket, std::string already_read, std::string greeting, Handlers handlers);

  // Reads until the connection ends, then calls on_end once. Owned by the server's TaskGroup; keeps itself alive.
  boost::asio::awaitable<void> run();

  // Queues a frame. A peer that does not read is cut off when kMaxUnsent bytes wait for it.
  void send(const rdzv::ServerMessage& message);
  // Closes when what is queued is out, at the latest after a second.
  void close_after_sending();
  void close(const std::string& why);

  bool closed() const { return closed_; }
  const std::string& peer() const { return peer_; }  // "10.0.0.1:4711"
  bool peer_is_loopback() const { return peer_is_loopback_; }
  const std::string& own_address() const { return own_address_; }  // our side of the connection, numeric

  // The node that speaks here, once it has said so. Kept by the server.
  RunId run_id;
  NodeId node_id;

 private:
  boost::asio::awaitable<Result<rdzv::Hello>> handshake();
  void write_next();

  static constexpr std::size_t kMaxUnsent = 16u << 20;

  boost::asio::ip::tcp::socket socket_;
  std::string already_read_;
  std::string greeting_;
  Handlers handlers_;
  std::string peer_, own_address_;
  bool peer_is_loopback_ = false;
  std::string queued_, writing_;
  bool closed_ = false, closing_ = false;
  std::string close_reason_;
};

}  // namespace ddprun::rendezvous
