#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "common/store_protocol.h"
#include "rendezvous/store/store.h"

namespace ddprun::rendezvous {

struct StoreSessionLimits {
  StoreDecoderLimits decoder;
  std::size_t max_store_bytes = std::size_t{4} << 30;
  std::size_t max_unread_bytes = std::size_t{4} << 20;
};

// One c10d connection without its socket: bytes in, bytes out. Pure.
class StoreSession {
 public:
  StoreSession(Store& store, ClientId client, const StoreSessionLimits& limits,
               std::array<std::uint64_t, kStoreOpCount>& counts)
      : store_(store), limits_(limits), counts_(counts), decoder_(limits.decoder), client_(client) {}

  enum class Verdict {
    ok,
    garbage,    // the first bytes are no VALIDATE
    too_old,    // ... but a torch client's from before there was VALIDATE (2023)
    malformed,  // unknown opcode, length over its bound, a value that is no number
    memory,     // the store is full
  };
  // Handles what `bytes` completes; keeps a last half request. Answers are appended to `out`, clients to be told "stop
  // waiting" to `wakes` (this one never: its own byte stands in `out`, in order). Stops early, keeping the rest, when
  // more than max_unread_bytes less `unsent` are in `out`: then paused() is true and feed("", ...) goes on.
  // Also stops, paused, after a long value: that is not copied into `out` but stands in the store, to be sent behind
  // `out` before anything else is done with the store; see take_tail().
  // Everything but ok: why() says the reason, close the connection.
  Verdict feed(std::string_view bytes, std::size_t unsent, std::string& out, Store::Wakes& wakes);

  bool validated() const { return validated_; }
  bool paused() const { return paused_; }
  // Of a request that is not whole yet.
  std::size_t half_bytes() const { return paused_ ? 0 : pending_.size(); }
  // What belongs behind `out` of the last feed(); empty mostly.
  std::string_view take_tail() { return std::exchange(tail_, {}); }
  std::string_view why() const { return why_; }
  std::size_t buffered() const { return pending_.capacity(); }

 private:
  Verdict validate(std::string_view& bytes);
  Verdict handle(const StoreRequest& request, std::string& out, Store::Wakes& wakes);
  void put_value(std::string_view value, std::string& out);
  bool has_room(std::size_t bytes);
  Verdict refuse(Verdict verdict, std::string_view why) {
    why_ = why;
    return verdict;
  }

  Store& store_;
  const StoreSessionLimits& limits_;
  std::array<std::uint64_t, kStoreOpCount>& counts_;
  StoreDecoder decoder_;
  std::string pending_;  // bytes that no handled request has used
  std::string_view why_;
  std::string_view tail_;
  ClientId client_;
  bool validated_ = false;
  bool paused_ = false;
};

// What the first bytes of a stranger look like: "an HTTP request", "a TLS hello", ...
std::string_view describe_first_bytes(std::string_view bytes);

}  // namespace ddprun::rendezvous
