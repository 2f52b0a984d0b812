#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/store_protocol.h"
#include "common/tcp.h"

namespace ddprun::rendezvous {

// Caps that a real job never meets. What goes over one is closed with one log line; others are not touched.
struct StoreServerOptions {
  std::size_t max_store_bytes = std::size_t{4} << 30;      // keys + values + queues in all
  std::size_t max_request_bytes = std::size_t{128} << 20;  // one request, in one connection's buffer
  std::size_t max_unread_bytes = std::size_t{4} << 20;  // answers a client has not read before we stop reading from it
  std::size_t max_buffered_bytes = std::size_t{1} << 30;  // unread answers and half requests, all connections together
  // Store clients; those whose first byte has not come, and who may be foreign, may be 256 more. 0 = as many as
  // descriptors allow.
  std::size_t max_connections = 0;
  std::chrono::milliseconds setup_timeout = std::chrono::seconds(60);  // from accept to a whole VALIDATE
};

// What `ddpctl store stats` and the metrics show.
struct StoreStats {
  std::size_t connections = 0;  // c10d clients now, the silent ones included
  std::size_t waiting = 0;      // of these in a WAIT or BARRIER
  std::size_t keys = 0;
  std::size_t queue_items = 0;
  std::size_t stored_bytes = 0;
  std::size_t buffered_bytes = 0;
  std::uint64_t accepted = 0;
  std::uint64_t handed_over = 0;  // to on_foreign
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t refused_garbage = 0;      // first bytes that are not c10d's (scans, HTTP, TLS)
  std::uint64_t refused_too_old = 0;      // torch clients from before VALIDATE
  std::uint64_t refused_malformed = 0;    // unknown opcode, length over its bound, not a number
  std::uint64_t refused_memory = 0;       // over one of the caps
  std::uint64_t refused_descriptors = 0;  // no descriptor left, or max_connections
  std::uint64_t setup_timeouts = 0;
  std::array<std::uint64_t, kStoreOpCount> requests{};  // by opcode
};

// Serves c10d TCPStore clients on one listening socket. Not thread safe: all calls, and all callbacks, on the thread
// that runs `context`. Does no name lookups. Constructing it starts serving.
class StoreServer {
 public:
  // A connection whose first byte is `first_byte` is not ours: it is handed over with what was read of it.
  using Foreign = std::function<void(boost::asio::ip::tcp::socket socket, std::string bytes_already_read)>;

  StoreServer(boost::asio::io_context& context, Listener listener, StoreServerOptions options = {});
  ~StoreServer();  // close()
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Set right after construction, before the context runs.
  void on_foreign(char first_byte, Foreign handler);

  // Closes all c10d connections and empties the store; goes on listening. Handed-over connections are not touched.
  void clear();
  // Between two rounds on one port. hold(): closes all c10d connections, empties the store, and takes no new ones: they
  // wait in the kernel's queue. serve(): takes them, but for those whose client has ended meanwhile (a worker of the
  // old round that was stopped).
  void hold();
  void serve();
  // Stops listening; who is connected is served on. For good.
  void stop_accepting();
  // Also stops listening. Idempotent.
  void close();

  std::uint16_t port() const;
  std::size_t connections() const;  // c10d clients
  StoreStats stats() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Raises the soft limit on descriptors to the hard one. Returns the old soft limit, for what is exec'd from here.
std::size_t raise_descriptor_limit();

}  // namespace ddprun::rendezvous
