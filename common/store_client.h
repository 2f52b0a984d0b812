#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/types.h"
#include "common/unique_fd.h"

namespace ddprun {

struct StoreClientOptions {
  Endpoint endpoint;
  // Put in front of every key. "/" is what torch's TCPStore does, so key "x" here is key "x" there; "/job7/" is a
  // PrefixStore("job7") over it; "" gives raw keys ("init/").
  std::string prefix = "/";
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);  // connect() and clone(), retries included
  std::chrono::milliseconds reply_timeout = std::chrono::seconds(30);    // each answer that comes at once
  // A lost connection is made anew, within the call's deadline, when the request was not sent yet or when asking twice
  // changes nothing (get, check, wait, num_keys, multi_get, list_keys, queue_len, ping). A server that restarted is
  // empty!
  bool reconnect = true;
};

// Blocking client of a c10d TCPStore (ours, and torch's libuv and legacy servers). One connection, one thread.
// Every call has a deadline; the errors are timed_out (names the call, the limit and the missing keys), peer_closed,
// malformed (an answer that is none) and what connect() says. After timed_out of wait/get/multi_get/queue_pop/barrier
// the client stays usable; after any other error the connection is closed and made anew by the next call (if allowed).
// A missing deadline means options.reply_timeout from now.
class StoreClient {
 public:
  // Connects, sends VALIDATE and PING, checks the echo; retries until connect_timeout.
  static Result<StoreClient> connect(StoreClientOptions options);
  StoreClient(StoreClient&&) noexcept = default;
  StoreClient& operator=(StoreClient&&) noexcept = default;
  ~StoreClient() = default;

  const StoreClientOptions& options() const { return options_; }
  // A connection of its own to the same server.
  Result<StoreClient> clone() const;

  // No answer exists: success means the bytes are with the kernel. A following call on this client sees the effect.
  Result<void> set(std::string_view key, std::string_view value);
  // set and PING in one write: success means the server has it.
  Result<void> set_confirmed(std::string_view key, std::string_view value);
  // Waits for the key, then reads it.
  Result<std::string> get(std::string_view key, TimePoint deadline);
  Result<std::string> get(std::string_view key);
  // nullopt if the key is missing now.
  Result<std::optional<std::string>> try_get(std::string_view key);
  Result<std::int64_t> add(std::string_view key, std::int64_t amount);
  // The value after the call, with c10d's rules: a missing key counts as empty; a missing key with a non-empty
  // `expected` answers `expected` and stores nothing.
  Result<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  Result<bool> check(std::span<const std::string> keys);
  Result<bool> check(std::string_view key);
  Result<void> wait(std::span<const std::string> keys, TimePoint deadline);
  Result<void> wait(std::string_view key, TimePoint deadline);
  // wait() whose error names what the keys stand for: "timed out after 30 s waiting for <what>: missing 2 of 8: a, b".
  Result<void> wait_for_keys(std::span<const std::string> keys, TimePoint deadline, std::string_view what);
  Result<bool> delete_key(std::string_view key);
  Result<std::int64_t> num_keys();  // of the whole store, whatever the prefix
  Result<void> append(std::string_view key, std::string_view value);
  // Waits for all keys, then reads them.
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys, TimePoint deadline);
  Result<void> multi_set(std::span<const std::pair<std::string, std::string>> pairs);
  // Those with our prefix, without it; sorted.
  Result<std::vector<std::string>> list_keys();
  Result<void> queue_push(std::string_view key, std::string_view value);
  Result<std::string> queue_pop(std::string_view key, TimePoint deadline);
  Result<std::optional<std::string>> queue_try_pop(std::string_view key);
  Result<std::int64_t> queue_len(std::string_view key);
  // The BARRIER opcode (torch >= 2.11 servers and ours). One key serves one barrier.
  Result<void> barrier(std::string_view key, std::int64_t world_size, TimePoint deadline);
  Result<void> ping();

 private:
  explicit StoreClient(StoreClientOptions options);

  enum class Repeat { no, yes };  // may the request be sent a second time on a new connection?
  Result<void> connect_once(TimePoint deadline);
  Result<void> ensure_connected(TimePoint deadline);
  Result<void> send(TimePoint deadline);  // request_
  // Sends request_ and reads the answer with `read`; makes the connection anew where that is safe.
  template <typename Read>
  auto call(std::string_view name, Repeat repeat, TimePoint deadline, Read read) -> decltype(read());
  Result<void> fill(std::size_t size, TimePoint deadline);  // at least `size` unread bytes in input_
  Result<std::uint8_t> read_u8(TimePoint deadline);
  Result<std::uint32_t> read_u32(TimePoint deadline);
  Result<std::int64_t> read_i64(TimePoint deadline);
  Result<std::string> read_blob(TimePoint deadline);
  Result<bool> read_stop_waiting(TimePoint deadline);  // false: cancelled after the deadline
  Result<std::vector<std::string>> missing_of(std::span<const std::string> keys);
  Result<void> wait_wire(std::string_view name, std::string_view what, std::span<const std::string> keys,
                         TimePoint deadline);
  std::string wire_key(std::string_view key) const;
  std::vector<std::string> wire_keys(std::span<const std::string> keys) const;
  TimePoint reply_deadline() const;
  void disconnect();

  StoreClientOptions options_;
  UniqueFd fd_;
  std::string request_;
  std::string input_;
  std::size_t input_offset_ = 0;
  bool sent_any_ = false;  // bytes of request_ reached the kernel
};

}  // namespace ddprun
