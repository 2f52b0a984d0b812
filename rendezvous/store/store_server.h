#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>

#include "common/tcp.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/store/store_options.h"
#include "rendezvous/store/store_service.h"

namespace ddprun::rendezvous {

// A store on a port of its own: that of the workers. Not thread safe: all calls on the thread that runs `context`.
// Constructing it starts serving.
class StoreServer {
 public:
  StoreServer(boost::asio::io_context& context, Listener listener, StoreServerOptions options = {});

  // Closes all connections, but for those that have said nothing yet, and empties the store; goes on listening.
  void clear();
  // Between two rounds on one port. hold(): closes all connections, empties the store, and takes no new ones: they
  // wait in the kernel's queue. serve(): takes them, but for those whose client has ended meanwhile (a worker of the
  // old round that was stopped).
  void hold();
  void serve();
  void close();  // idempotent

  std::uint16_t port() const { return acceptor_.port(); }
  std::size_t connections() const { return service_.connections() + acceptor_.pending(); }
  StoreStats stats() const { return service_.stats(); }

 private:
  Acceptor acceptor_;
  StoreService service_;
};

}  // namespace ddprun::rendezvous
