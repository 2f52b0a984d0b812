#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/refusal_log.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/store_connection.h"
#include "rendezvous/store/store_deadlines.h"
#include "rendezvous/store/store_options.h"

namespace ddprun::rendezvous {

// Serves c10d TCPStore clients that an acceptor gives to it, from one store. Not thread safe: all calls on the thread
// of the acceptor's context. Does no name lookups.
class StoreService final : public StoreConnection::Owner {
 public:
  // Takes what no other taker wants: the wrong ones are told apart, counted and named here. `acceptor` outlives it.
  StoreService(Acceptor& acceptor, StoreServerOptions options);
  ~StoreService();  // close()
  StoreService(const StoreService&) = delete;
  StoreService& operator=(const StoreService&) = delete;

  void clear();  // closes all clients and empties the store
  void close();  // for good

  std::size_t connections() const { return live_; }
  StoreStats stats() const;

  void on_events(StoreConnection& connection, std::uint32_t events) override;

 private:
  void adopt(Acceptor::Opening opening);
  void read(StoreConnection& connection);
  void feed(StoreConnection& connection, std::string_view bytes);
  bool flush(StoreConnection& connection);
  void deliver_wakes();
  void account(StoreConnection& connection);
  void at_end(StoreConnection& connection);
  void refuse(StoreConnection& connection, StoreSession::Verdict verdict, std::size_t size);
  void refuse_for_memory(StoreConnection& connection, std::string_view why);
  void refuse_for_number();
  void drop(StoreConnection& connection);
  void look_at_half(StoreConnection& connection);
  void too_late(StoreConnection& connection, std::string_view what, std::chrono::milliseconds limit);
  void trim();

  Acceptor& acceptor_;
  EventSet& events_;
  const StoreServerOptions options_;
  StoreSessionLimits limits_;
  Store store_;
  std::vector<std::unique_ptr<StoreConnection>> connections_;  // by ClientId, which is EventSet::index_of
  StoreDeadlines setups_;                                      // no VALIDATE yet
  StoreDeadlines halves_;                                      // part of a request is here
  StoreDeadlines ends_;                                        // finished, with answers that it does not take
  bool closed_ = false;
  std::size_t live_ = 0;
  std::size_t buffered_ = 0;
  std::size_t peak_bytes_ = 0;  // stored, since the last trim()

  std::vector<char> scratch_;  // what recv() fills; one for all connections
  std::string reply_;
  Store::Wakes wakes_;
  Store::Wakes delivering_;

  StoreStats counts_;  // the counting half of it
  RefusalLog garbage_log_, too_old_log_, malformed_log_, memory_log_, number_log_, late_log_;
};

}  // namespace ddprun::rendezvous
