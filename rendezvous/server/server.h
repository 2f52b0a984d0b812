#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/tcp.h"
#include "common/types.h"
#include "rendezvous/membership/membership.h"
#include "rendezvous/server/state_file.h"
#include "rendezvous/server/status.h"
#include "rendezvous/store/store_options.h"

namespace ddprun::rendezvous {

struct ServerOptions {
  bool embedded = false;      // in a launcher: dies with it; agents are told
  RunId hosted_for;           // embedded: whose job; "" = not said
  bool own_run_only = false;  // and nobody else's
  std::string token;          // lets operators of other hosts drain and stop; "" = loopback only
  StoreServerOptions store;
  std::shared_ptr<const StateFile> state_file;  // kept up to date with the worlds that may live; may be null
  std::vector<KnownWorld> worlds;               // that an earlier daemon knew
};

// The rendezvous port: c10d store and agent protocol on one listener, told apart by the first byte. All jobs, one
// thread (that of `io`). Serves from construction on.
class RendezvousServer {
 public:
  RendezvousServer(boost::asio::io_context& io, Listener listener, ServerOptions options);
  ~RendezvousServer();  // close()
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  std::uint16_t port() const;
  StoreStats store_stats() const;
  // Closes all clients of the store but for those that have said nothing yet, and empties it.
  void clear_store();

  std::size_t agents() const;  // connected now
  ServerCounters counters() const;
  std::vector<JobStatus> jobs() const;

  // Called when a round of a static job has formed, before its assignments are sent: the moment at which no worker of
  // the old round lives and none of the new one is started.
  void on_static_round(std::function<void()> hook);

  // Tells every agent that the daemon stops (workers run on, agents reconnect to the next one), then closes. Meanwhile
  // nobody new is taken, and nothing that happens means anything any more: no node is lost, no round formed.
  boost::asio::awaitable<void> say_goodbye();
  // Returns when no agent of the job is connected any more, or after `grace`.
  boost::asio::awaitable<void> drain(RunId run_id, std::chrono::milliseconds grace);
  void close();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
