#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/rdzv_protocol.h"
#include "rendezvous/net/strangers.h"

namespace ddprun::rendezvous {

// What waits to be read by all agents and operators together, and the half frames that have come from them.
struct UnsentSum {
  std::size_t bytes = 0;
  static constexpr std::size_t kMost = 256u << 20;
};

// One connection of an agent or of ddpctl: bytes <-> messages. Decides nothing.
class AgentConnection : public std::enable_shared_from_this<AgentConnection>, public Stranger {
 public:
  struct Handlers {
    std::function<void(AgentConnection&, rdzv::AgentMessage)> on_agent;
    std::function<void(AgentConnection&, rdzv::OperatorMessage)> on_operator;
    // It did not open as an agent or operator of our version; on_end follows.
    std::function<void(AgentConnection&, const std::string& why)> on_refused;
    // The connection is over; `lost` = closed or reset by the peer. Not lost: silence, what the kernel says of a peer
    // that it cannot reach, and what we closed ourselves; the peer may live then.
    std::function<void(AgentConnection&, bool lost, const std::string& why)> on_end;
    // All that was sent to an operator is out.
    std::function<void(AgentConnection&)> on_drained;
    // More than UnsentSum::kMost waits in all.
    std::function<void()> on_too_much;
  };
  // Makes the next message of a long answer; nullopt: that was all.
  using Source = std::function<std::optional<rdzv::ServerMessage>()>;

  AgentConnection(boost::asio::ip::tcp::socket socket, std::string already_read, std::string greeting,
                  Handlers handlers, std::shared_ptr<Strangers> strangers, std::shared_ptr<UnsentSum> sum);
  ~AgentConnection() override;

  int descriptor() const override { return descriptor_; }
  void turn_away(std::string_view why) override;
  // It has said who it is, and was believed. Until then it is among the strangers, and must be brief.
  void welcome();
  bool is_known() const { return known_; }
  bool is_operator() const { return is_operator_; }
  // An operator for whom nothing is under way.
  bool is_idle() const { return !collecting_ && unsent() == 0 && sources_.empty(); }

  // Reads until the connection ends, then calls on_end once. Keeps itself alive; close() ends it in the next turn of
  // the context.
  boost::asio::awaitable<void> run();

  // Queues a frame. A peer that does not read is cut off when kMaxUnsent (an operator: kMaxUnsentOperator) bytes wait
  // for it; an operator also when it has not taken a write for kStuckLimit.
  void send(const rdzv::ServerMessage& message);
  // A long answer: its messages are made one by one, as fast as the peer reads them.
  void stream(Source source);
  // An answer to an operator that comes piece by piece begins and ends: its next request waits for that.
  void collect();
  void end_collecting();
  std::size_t unsent() const { return queued_.size() + writing_.size(); }
  std::size_t held() const { return unsent() + coming_; }  // also what has come of a frame
  // Closes when what is queued is out, at the latest after a second.
  void close_after_sending();
  void close(const std::string& why);

  bool closed() const { return closed_; }
  const std::string& peer() const { return peer_; }                  // "10.0.0.1:4711"
  const std::string& peer_address() const { return peer_address_; }  // numeric, without a zone
  bool peer_is_loopback() const { return peer_is_loopback_; }
  const std::string& own_address() const { return own_address_; }  // our side of the connection, numeric

  // The node that speaks here, once it has said so. Kept by the server.
  RunId run_id;
  NodeId node_id;
  std::uint64_t number = 0;  // of this node: its count of connections so far
  // The peer must send a whole frame within this time: the first one within kFirstLimit. After an agent's first one the
  // server sets it to more than T_lost, which ends the node before; an operator reads long answers meanwhile.
  std::chrono::milliseconds read_limit = kFirstLimit;

  static constexpr std::chrono::seconds kFirstLimit{5};
  static constexpr std::chrono::seconds kOperatorLimit{600};
  static constexpr std::chrono::seconds kStuckLimit{60};
  static constexpr std::uint32_t kMaxFirstFrame = 4096;  // who is not known yet
  static constexpr std::size_t kMaxUnsent = 16u << 20;
  static constexpr std::size_t kMaxUnsentOperator = 48u << 20;

 private:
  boost::asio::awaitable<Result<rdzv::Hello>> handshake();
  boost::asio::awaitable<Result<std::string>> next_frame();
  std::uint32_t max_frame() const;
  void account();
  void write_next();
  boost::asio::awaitable<void> all_written();
  boost::asio::awaitable<void> collected();

  boost::asio::ip::tcp::socket socket_;
  std::string already_read_;
  std::string greeting_;
  Handlers handlers_;
  std::string peer_, peer_address_, own_address_;
  bool peer_is_loopback_ = false;
  bool is_operator_ = false;
  bool known_ = false;
  int descriptor_ = -1;
  std::size_t flights_asked_ = 0;  // FlightRequests without an answer: only those may be long
  std::shared_ptr<Strangers> strangers_;
  std::shared_ptr<UnsentSum> sum_;
  std::size_t accounted_ = 0;  // in it
  bool collecting_ = false;
  std::string queued_, writing_;
  std::size_t coming_ = 0;
  std::deque<Source> sources_;
  boost::asio::steady_timer stuck_;
  boost::asio::steady_timer written_;  // never expires; cancelled when all is out or collected, or no more can go out
  bool gave_up_ = false;               // a write found that the peer is silent; the reader then sees a mere end
  bool closed_ = false, closing_ = false;
  std::string close_reason_;
};

}  // namespace ddprun::rendezvous
