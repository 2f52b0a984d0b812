#include "common/store_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "common/store_protocol.h"
#include "common/tcp.h"

namespace ddprun {
namespace {

// After our deadline the server still has to answer CANCEL_WAIT; one that does not is gone.
constexpr std::chrono::milliseconds kCancelGrace{5000};
// Keys that a timeout's message names, and keys that it looks at to find them.
constexpr std::size_t kNamedKeys = 5;
constexpr std::size_t kProbedKeys = 4096;
constexpr std::size_t kReadChunk = 64 * 1024;
constexpr std::size_t kKeepBuffer = 1 << 20;

std::string duration_text(Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  return ms % 1000 == 0 ? fmt::format("{} s", ms / 1000) : fmt::format("{} ms", ms);
}

// For poll(): rounded up, so that a wait never ends before its deadline.
int poll_ms(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000 * 1000));
}

// The peer has closed, or has sent bytes nobody asked for: either way the connection is of no use. Looked at before a
// request is written, because a write into a closed connection succeeds the first time.
bool is_stale(int fd) {
  char byte;
  const ssize_t n = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

Error not_an_answer(std::string_view what) {
  return Error(Errc::malformed, fmt::format("the store's answer is not one of c10d's: {}", what));
}

std::string names(std::span<const std::string> missing) {
  std::string text;
  for (std::size_t i = 0; i < std::min(missing.size(), kNamedKeys); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", missing[i]);
  }
  if (missing.size() > kNamedKeys) text += ", ...";
  return text;
}

}  // namespace

StoreClient::StoreClient(StoreClientOptions options) : options_(std::move(options)) {}

Result<StoreClient> StoreClient::connect(StoreClientOptions options) {
  StoreClient client(std::move(options));
  const auto limit = client.options_.connect_timeout;
  if (auto connected = client.ensure_connected(SteadyClock::now() + limit); !connected) {
    return std::move(connected).error();
  }
  return client;
}

Result<StoreClient> StoreClient::clone() const { return connect(options_); }

void StoreClient::disconnect() {
  fd_.reset();
  input_.clear();
  input_offset_ = 0;
}

TimePoint StoreClient::reply_deadline() const { return SteadyClock::now() + options_.reply_timeout; }

std::string StoreClient::wire_key(std::string_view key) const {
  std::string wire;
  wire.reserve(options_.prefix.size() + key.size());
  wire += options_.prefix;
  wire += key;
  return wire;
}

std::vector<std::string> StoreClient::wire_keys(std::span<const std::string> keys) const {
  std::vector<std::string> wire;
  wire.reserve(keys.size());
  for (const std::string& key : keys) wire.push_back(wire_key(key));
  return wire;
}

Result<void> StoreClient::connect_once(TimePoint deadline) {
  disconnect();
  auto fd = tcp_connect(options_.endpoint, deadline);
  if (!fd) return std::move(fd).error();
  fd_ = std::move(*fd);
  std::string hello;
  store_wire::validate(hello);  // one write: torch's libuv server closes on a VALIDATE that is cut in two
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  store_wire::ping(hello, nonce);
  if (auto sent = write_all(fd_.get(), hello, deadline); !sent) return sent;
  auto echo = read_u32(deadline);
  if (!echo) return std::move(echo).error();
  if (*echo != nonce) return not_an_answer("another number than the one pinged");
  return {};
}

Result<void> StoreClient::ensure_connected(TimePoint deadline) {
  if (fd_ && is_stale(fd_.get())) {
    disconnect();
    if (!options_.reconnect) {
      return Error(Errc::peer_closed, "the store closed the connection");
    }
  }
  if (fd_) return {};
  // tcp_connect retries refused connects; a server that accepts and hangs up (it is about to end, or its descriptors
  // are used up) is tried again here.
  std::chrono::milliseconds pause{20};
  for (;;) {
    auto connected = connect_once(deadline);
    if (connected) return {};
    Error error = std::move(connected).error();
    disconnect();
    const bool again = error.code() == Errc::peer_closed && SteadyClock::now() + pause < deadline;
    if (!again) {
      const std::string where = fmt::format("connecting to the store at {}", options_.endpoint.to_string());
      return std::move(error).with_context(where);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(1000));
  }
}

Result<void> StoreClient::send(TimePoint deadline) {
  // By hand rather than write_all: whether any byte left decides if the request may be sent again.
  std::size_t done = 0;
  sent_any_ = false;
  while (done < request_.size()) {
    const ssize_t n = ::send(fd_.get(), request_.data() + done, request_.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      sent_any_ = true;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      const int limit = poll_ms(deadline);
      if (limit == 0) return Error(Errc::timed_out, "the store does not take the request");
      pollfd waiting{.fd = fd_.get(), .events = POLLOUT, .revents = 0};
      ::poll(&waiting, 1, limit);
      continue;
    }
    return Error::from_errno(errno, "sending to the store");
  }
  return {};
}

Result<void> StoreClient::fill(std::size_t size, TimePoint deadline) {
  while (input_.size() - input_offset_ < size) {
    if (input_offset_ == input_.size()) {
      if (input_.capacity() > kKeepBuffer) std::string().swap(input_);
      input_.clear();
      input_offset_ = 0;
    }
    const std::size_t have = input_.size();
    const std::size_t missing = size - (have - input_offset_);
    // A length is believed only as far as bytes come: memory grows with them.
    const std::size_t chunk = std::min(std::max(missing, std::size_t{4096}), std::max(kReadChunk, have));
    input_.resize(have + chunk);
    ssize_t n = ::recv(fd_.get(), input_.data() + have, chunk, MSG_DONTWAIT);
    const int error = errno;
    input_.resize(have + (n > 0 ? static_cast<std::size_t>(n) : 0));
    if (n > 0) continue;
    if (n == 0) return Error(Errc::peer_closed, "the store closed the connection (has it ended?)");
    if (error == EINTR) continue;
    if (error != EAGAIN && error != EWOULDBLOCK) return Error::from_errno(error, "reading from the store");
    pollfd waiting{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    // Looked at even when the deadline has passed: an answer that is there counts.
    const int ready = ::poll(&waiting, 1, poll_ms(deadline));
    if (ready == 0 && SteadyClock::now() >= deadline) return Error(Errc::timed_out, "no answer from the store");
  }
  return {};
}

Result<std::uint8_t> StoreClient::read_u8(TimePoint deadline) {
  if (auto filled = fill(1, deadline); !filled) return std::move(filled).error();
  return static_cast<std::uint8_t>(input_[input_offset_++]);
}

Result<std::uint32_t> StoreClient::read_u32(TimePoint deadline) {
  if (auto filled = fill(4, deadline); !filled) return std::move(filled).error();
  std::uint32_t value;
  std::memcpy(&value, input_.data() + input_offset_, sizeof value);
  input_offset_ += sizeof value;
  return value;
}

Result<std::int64_t> StoreClient::read_i64(TimePoint deadline) {
  if (auto filled = fill(8, deadline); !filled) return std::move(filled).error();
  std::int64_t value;
  std::memcpy(&value, input_.data() + input_offset_, sizeof value);
  input_offset_ += sizeof value;
  return value;
}

Result<std::string> StoreClient::read_blob(TimePoint deadline) {
  auto size = read_i64(deadline);
  if (!size) return std::move(size).error();
  // torch bounds neither replies nor values grown by append; 2^40 is no value but a stream out of step.
  if (*size < 0 || *size > (std::int64_t{1} << 40)) return not_an_answer("a value of an impossible length");
  const auto bytes = static_cast<std::size_t>(*size);
  if (auto filled = fill(bytes, deadline); !filled) return std::move(filled).error();
  std::string value = input_.substr(input_offset_, bytes);
  input_offset_ += bytes;
  return value;
}

// One request and its answer. `read` runs after the request was sent.
template <typename Read>
auto StoreClient::call(std::string_view name, Repeat repeat, TimePoint deadline, Read read) -> decltype(read()) {
  for (bool first = true;; first = false) {
    auto connected = ensure_connected(deadline);
    if (!connected) return std::move(connected).error().with_context(fmt::format("store {}", name));
    auto sent = send(deadline);
    if (sent) {
      auto answer = read();
      if (answer) return answer;
      sent = std::move(answer).error();
    }
    disconnect();
    const bool safe = repeat == Repeat::yes || !sent_any_;
    if (first && safe && options_.reconnect && sent.error().code() == Errc::peer_closed) continue;
    const std::string where = fmt::format("store {} at {}", name, options_.endpoint.to_string());
    return std::move(sent).error().with_context(where);
  }
}

Result<void> StoreClient::set(std::string_view key, std::string_view value) {
  request_.clear();
  store_wire::set(request_, wire_key(key), value);
  return call("set", Repeat::no, reply_deadline(), [] { return Result<void>(); });
}

Result<void> StoreClient::set_confirmed(std::string_view key, std::string_view value) {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::set(request_, wire_key(key), value);
  store_wire::ping(request_, nonce);
  return call("set", Repeat::no, deadline, [&]() -> Result<void> {
    auto echo = read_u32(deadline);
    if (!echo) return std::move(echo).error();
    if (*echo != nonce) return not_an_answer("another number than the one pinged");
    return {};
  });
}

Result<void> StoreClient::ping() {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::ping(request_, nonce);
  return call("ping", Repeat::yes, deadline, [&]() -> Result<void> {
    auto echo = read_u32(deadline);
    if (!echo) return std::move(echo).error();
    if (*echo != nonce) return not_an_answer("another number than the one pinged");
    return {};
  });
}

Result<bool> StoreClient::read_stop_waiting(TimePoint deadline) {
  auto answer = read_u8(deadline);
  if (answer) {
    if (*answer != kStoreStopWaiting) return not_an_answer("not STOP_WAITING");
    return true;
  }
  if (answer.error().code() != Errc::timed_out) return std::move(answer).error();
  // The wait may end in the same moment: then two bytes come, 0 and 1.
  const TimePoint grace = SteadyClock::now() + kCancelGrace;
  std::string cancel;
  store_wire::cancel_wait(cancel);
  if (auto sent = write_all(fd_.get(), cancel, grace); !sent) return std::move(sent).error();
  auto first = read_u8(grace);
  if (!first) return std::move(first).error();
  if (*first == kStoreWaitCanceled) return false;
  if (*first != kStoreStopWaiting) return not_an_answer("neither STOP_WAITING nor WAIT_CANCELED");
  auto second = read_u8(grace);
  if (!second) return std::move(second).error();
  if (*second != kStoreWaitCanceled) return not_an_answer("not WAIT_CANCELED");
  return true;
}

// Those of `keys` that are not there, asked for one by one in one batch. At most kProbedKeys are looked at.
Result<std::vector<std::string>> StoreClient::missing_of(std::span<const std::string> keys) {
  keys = keys.subspan(0, std::min(keys.size(), kProbedKeys));
  const TimePoint deadline = reply_deadline();
  std::vector<std::string> missing;
  // In batches, so that neither side's buffers fill while both write.
  constexpr std::size_t kBatch = 64;
  for (std::size_t start = 0; start < keys.size(); start += kBatch) {
    const auto batch = keys.subspan(start, std::min(kBatch, keys.size() - start));
    request_.clear();
    for (const std::string& key : batch) {
      const std::string wire[1] = {wire_key(key)};
      store_wire::keys(request_, StoreOp::check, wire);
    }
    auto done = call("check", Repeat::no, deadline, [&]() -> Result<void> {
      for (const std::string& key : batch) {
        auto ready = read_u8(deadline);
        if (!ready) return std::move(ready).error();
        if (*ready == kStoreNotReady) missing.push_back(key);
      }
      return {};
    });
    if (!done) return std::move(done).error();
  }
  return missing;
}

Result<void> StoreClient::wait_wire(std::string_view name, std::string_view what, std::span<const std::string> keys,
                                    TimePoint deadline) {
  const TimePoint start = SteadyClock::now();
  const auto wire = wire_keys(keys);
  request_.clear();
  store_wire::keys(request_, StoreOp::wait, wire);
  auto ended = call(name, Repeat::yes, deadline, [&] { return read_stop_waiting(deadline); });
  if (!ended) return std::move(ended).error();
  if (*ended) return {};
  const std::string limit = duration_text(SteadyClock::now() - start);
  const std::string subject = what.empty() ? std::string() : fmt::format(" for {}", what);
  auto missing = missing_of(keys);
  const std::string where = fmt::format("store {} at {}", name, options_.endpoint.to_string());
  if (!missing || missing->empty()) {
    return Error(Errc::timed_out, fmt::format("{}: timed out after {} waiting{}: {} keys, {}", where, limit, subject,
                                              keys.size(), names(keys)));
  }
  return Error(Errc::timed_out, fmt::format("{}: timed out after {} waiting{}: missing {} of {}: {}", where, limit,
                                            subject, missing->size(), keys.size(), names(*missing)));
}

Result<void> StoreClient::wait(std::span<const std::string> keys, TimePoint deadline) {
  return wait_wire("wait", {}, keys, deadline);
}

Result<void> StoreClient::wait(std::string_view key, TimePoint deadline) {
  const std::string one[1] = {std::string(key)};
  return wait(one, deadline);
}

Result<void> StoreClient::wait_for_keys(std::span<const std::string> keys, TimePoint deadline, std::string_view what) {
  return wait_wire("wait", what, keys, deadline);
}

Result<std::string> StoreClient::get(std::string_view key, TimePoint deadline) {
  const std::string one[1] = {std::string(key)};
  if (auto ready = wait_wire("get", {}, one, deadline); !ready) return std::move(ready).error();
  // The answer comes at once now; it gets a limit of its own, so that a key that came at the last moment is read.
  const TimePoint limit = std::max(deadline, reply_deadline());
  request_.clear();
  store_wire::get(request_, wire_key(key));
  return call("get", Repeat::yes, limit, [&] { return read_blob(limit); });
}

Result<std::string> StoreClient::get(std::string_view key) { return get(key, reply_deadline()); }

Result<std::optional<std::string>> StoreClient::try_get(std::string_view key) {
  const TimePoint deadline = reply_deadline();
  auto ready = check(key);
  if (!ready) return std::move(ready).error();
  if (!*ready) return std::optional<std::string>();
  request_.clear();
  store_wire::get(request_, wire_key(key));
  auto value = call("get", Repeat::yes, deadline, [&] { return read_blob(deadline); });
  if (!value) return std::move(value).error();
  return std::optional<std::string>(std::move(*value));
}

Result<std::int64_t> StoreClient::add(std::string_view key, std::int64_t amount) {
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::add(request_, wire_key(key), amount);
  return call("add", Repeat::no, deadline, [&] { return read_i64(deadline); });
}

Result<std::string> StoreClient::compare_set(std::string_view key, std::string_view expected,
                                             std::string_view desired) {
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::compare_set(request_, wire_key(key), expected, desired);
  return call("compare_set", Repeat::no, deadline, [&] { return read_blob(deadline); });
}

Result<bool> StoreClient::check(std::span<const std::string> keys) {
  const TimePoint deadline = reply_deadline();
  const auto wire = wire_keys(keys);
  request_.clear();
  store_wire::keys(request_, StoreOp::check, wire);
  return call("check", Repeat::yes, deadline, [&]() -> Result<bool> {
    auto answer = read_u8(deadline);
    if (!answer) return std::move(answer).error();
    if (*answer != kStoreReady && *answer != kStoreNotReady) return not_an_answer("neither ready nor not ready");
    return *answer == kStoreReady;
  });
}

Result<bool> StoreClient::check(std::string_view key) {
  const std::string one[1] = {std::string(key)};
  return check(one);
}

Result<bool> StoreClient::delete_key(std::string_view key) {
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::delete_key(request_, wire_key(key));
  auto deleted = call("delete_key", Repeat::no, deadline, [&] { return read_i64(deadline); });
  if (!deleted) return std::move(deleted).error();
  return *deleted > 0;
}

Result<std::int64_t> StoreClient::num_keys() {
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::num_keys(request_);
  return call("num_keys", Repeat::yes, deadline, [&] { return read_i64(deadline); });
}

Result<void> StoreClient::append(std::string_view key, std::string_view value) {
  request_.clear();
  store_wire::append(request_, wire_key(key), value);
  return call("append", Repeat::no, reply_deadline(), [] { return Result<void>(); });
}

Result<std::vector<std::string>> StoreClient::multi_get(std::span<const std::string> keys, TimePoint deadline) {
  if (auto ready = wait_wire("multi_get", {}, keys, deadline); !ready) return std::move(ready).error();
  const TimePoint limit = std::max(deadline, reply_deadline());
  const auto wire = wire_keys(keys);
  request_.clear();
  store_wire::keys(request_, StoreOp::multi_get, wire);
  return call("multi_get", Repeat::yes, limit, [&]() -> Result<std::vector<std::string>> {
    std::vector<std::string> values;
    values.reserve(wire.size());
    for (std::size_t i = 0; i < wire.size(); ++i) {
      auto value = read_blob(limit);
      if (!value) return std::move(value).error();
      values.push_back(std::move(*value));
    }
    return values;
  });
}

Result<void> StoreClient::multi_set(std::span<const std::pair<std::string, std::string>> pairs) {
  std::vector<std::pair<std::string, std::string>> wire;
  wire.reserve(pairs.size());
  for (const auto& [key, value] : pairs) wire.emplace_back(wire_key(key), value);
  request_.clear();
  store_wire::multi_set(request_, wire);
  return call("multi_set", Repeat::no, reply_deadline(), [] { return Result<void>(); });
}

Result<std::vector<std::string>> StoreClient::list_keys() {
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::list_keys(request_);
  return call("list_keys", Repeat::yes, deadline, [&]() -> Result<std::vector<std::string>> {
    auto count = read_i64(deadline);
    if (!count) return std::move(count).error();
    if (*count < 0) return not_an_answer("a negative number of keys");
    std::vector<std::string> keys;
    for (std::int64_t i = 0; i < *count; ++i) {
      auto key = read_blob(deadline);
      if (!key) return std::move(key).error();
      if (key->starts_with(options_.prefix)) keys.push_back(key->substr(options_.prefix.size()));
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  });
}

Result<void> StoreClient::queue_push(std::string_view key, std::string_view value) {
  request_.clear();
  store_wire::queue_push(request_, wire_key(key), value);
  return call("queue_push", Repeat::no, reply_deadline(), [] { return Result<void>(); });
}

Result<std::optional<std::string>> StoreClient::queue_try_pop(std::string_view key) {
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::queue_pop(request_, wire_key(key));
  return call("queue_pop", Repeat::no, deadline, [&]() -> Result<std::optional<std::string>> {
    auto length = read_i64(deadline);
    if (!length) return std::move(length).error();
    if (*length <= 0) return std::optional<std::string>();
    auto value = read_blob(deadline);
    if (!value) return std::move(value).error();
    return std::optional<std::string>(std::move(*value));
  });
}

Result<std::string> StoreClient::queue_pop(std::string_view key, TimePoint deadline) {
  const std::string one[1] = {std::string(key)};
  for (;;) {
    if (auto ready = wait_wire("queue_pop", {}, one, deadline); !ready) return std::move(ready).error();
    auto value = queue_try_pop(key);
    if (!value) return std::move(value).error();
    if (value->has_value()) return std::move(**value);
    // Another client took the item between the two requests, or the name is a key and no queue.
    if (SteadyClock::now() >= deadline) {
      return Error(Errc::timed_out, fmt::format("store queue_pop at {}: the queue {} was emptied by others each time",
                                                options_.endpoint.to_string(), key));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<std::int64_t> StoreClient::queue_len(std::string_view key) {
  const TimePoint deadline = reply_deadline();
  request_.clear();
  store_wire::queue_len(request_, wire_key(key));
  return call("queue_len", Repeat::yes, deadline, [&] { return read_i64(deadline); });
}

Result<void> StoreClient::barrier(std::string_view key, std::int64_t world_size, TimePoint deadline) {
  const TimePoint start = SteadyClock::now();
  request_.clear();
  store_wire::barrier(request_, wire_key(key), world_size);
  auto ended = call("barrier", Repeat::no, deadline, [&] { return read_stop_waiting(deadline); });
  if (!ended) return std::move(ended).error();
  if (*ended) return {};
  const std::string limit = duration_text(SteadyClock::now() - start);
  auto count = try_get(key);
  const std::string arrived = count && count->has_value() ? **count : std::string("?");
  return Error(Errc::timed_out, fmt::format("store barrier at {}: timed out after {}: {} of {} arrived at {}",
                                            options_.endpoint.to_string(), limit, arrived, world_size, key));
}

}  // namespace ddprun
