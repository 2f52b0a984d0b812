#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/store_protocol.h"

namespace ddprun::rendezvous {

// Caps that a real job never meets. What goes over one is closed with one log line; others are not touched.
struct StoreServerOptions {
  std::size_t max_store_bytes = std::size_t{4} << 30;      // keys + values + queues in all
  std::size_t max_request_bytes = std::size_t{128} << 20;  // one request, in one connection's buffer
  std::size_t max_unread_bytes = std::size_t{4} << 20;  // answers a client has not read before we stop reading from it
  std::size_t max_buffered_bytes = std::size_t{1} << 30;  // unread answers and half requests, all connections together
  std::size_t max_connections = 0;                        // store clients; 0 = as many as descriptors allow
  std::chrono::milliseconds setup_timeout = std::chrono::seconds(5);  // from accept to the first bytes, to VALIDATE
  // A request of which only a part is here: so long until it is whole, or kHalfProgress more of it has come.
  std::chrono::milliseconds half_request_timeout = std::chrono::seconds(60);
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

}  // namespace ddprun::rendezvous
