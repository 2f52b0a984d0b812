#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/rdzv_protocol.h"
#include "common/result.h"
#include "common/types.h"

namespace ddprun::launcher {

// What the client tells its agent. Called from the client's own coroutines; must not block or throw.
struct ClientEvents {
  std::function<void(rdzv::ServerMessage)> on_message;  // all but heartbeat answers and Registered
  // While workers may live: nothing proves for T_lease that the rendezvous is alive or dead. Once per silence.
  std::function<void()> on_lease_expired;
  // The lease now ends then, unless it is renewed again.
  std::function<void(TimePoint end)> on_lease;
  // No address of the endpoint will ever talk to us: another protocol, another version. Once.
  std::function<void(Error)> on_hopeless;
  // last_useful(), disconnected_since(), server_is_embedded() or last_problem() may be others now.
  std::function<void()> on_link;
  // Nobody listens at the endpoint, and nothing of ours was kept there (replaceable()): we might host it ourselves.
  std::function<void()> on_nobody_there;
};

struct ClientOptions {
  Endpoint endpoint;
  std::uint16_t ports = 1;  // it may be at any of so many ports from the endpoint's on; others may sit there too
  rdzv::NodeInfo node;      // address empty: our side of the connection
  std::string session_key;  // see rdzv_protocol.h
  std::chrono::milliseconds read_timeout{60'000};  // from the first contact to something useful
  std::string waiting_hint;                        // added to what a waiting user hears
};

// The agent's connection to the rendezvous: connects, and after a break connects again at least once a second, says
// again who we are, keeps the lease. One thread.
//
// A new connection is tried after 20 ms, twice that after each try, at most 900 ms; from 20 ms again once something
// useful has come. Who takes our connections for read_timeout and never says anything useful is hopeless.
//
// The lease runs from the send time of the last answered heartbeat. A new connection that is refused where
// the daemon was proves that the host is there and the daemon is dead, so it starts the lease anew: workers run on.
// Silence does not, and neither does a connection that was taken and closed: a living daemon may do that. When the
// lease is over a new connection is tried, but the old one is kept open until join() or close(): a FIN would tell
// the rendezvous that our workers are dead, which they are not yet.
class RendezvousClient {
 public:
  RendezvousClient(boost::asio::io_context& io, ClientOptions options, ClientEvents events);
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  void start();
  void set_endpoint(Endpoint endpoint);  // e.g. after we became the host

  // Wants a place in the next round; kept and said again on each connection until assigned() or leave().
  void join(Round last_round, std::uint16_t worker_store_port);
  // Our workers of this round are being started: from now on a new connection registers instead of joining.
  void assigned(const rdzv::Assignment& slice);
  void done(rdzv::DoneResult result);
  void failed(rdzv::Failure failure);  // `at`: now; the age is brought up to date when it is sent again
  // A member stays connected while it stops its workers: the next round waits for that. Said again on a new connection.
  void leave(std::string reason);
  void send_flight(rdzv::FlightReply reply);

  // Sends what is queued (at most `limit`), closes, ends all coroutines. After that the object is idle for good.
  boost::asio::awaitable<void> close(std::chrono::milliseconds limit);

  bool server_is_embedded() const;
  // When a working rendezvous last said something about us (any message but its goodbye); at first: start(). One that
  // only greets says nothing.
  TimePoint last_useful() const;
  bool ever_useful() const;  // it has said something about us at least once
  // nullopt: there is a connection on which something useful has come. Else since when there is none; before the first:
  // start().
  std::optional<TimePoint> disconnected_since() const;
  // There is no connection, and what was there, if anything, was embedded in a launcher of another job: that does not
  // come back for us.
  bool replaceable() const;
  TimePoint lease_end() const;
  std::string last_problem() const;    // why there is no connection, or none of use
  std::string server_address() const;  // numeric, of the current or last connection; "" before the first

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
