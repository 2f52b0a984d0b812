#include "common/frame_io.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <utility>

#include "common/deadline.h"
#include "common/wire.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::size_t kFirstStep = 16384;
constexpr std::size_t kFirstRoom = 4096;
constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

std::unique_ptr<Deadline> limit_of(tcp::socket& socket, std::chrono::milliseconds limit) {
  if (limit.count() == 0) return nullptr;
  return std::make_unique<Deadline>(socket.get_executor(), limit, [&socket] {
    boost::system::error_code ignored;
    socket.cancel(ignored);
  });
}

Error timed_out(const char* what, std::chrono::milliseconds limit) {
  return Error(Errc::timed_out, std::string(what) + ": nothing for " + std::to_string(limit.count()) + " ms");
}

}  // namespace

Error from_boost(const boost::system::error_code& error, std::string what) {
  if (error == asio::error::eof) return Error(Errc::peer_closed, std::move(what) + ": the peer closed the connection");
  if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) {
    return Error(Errc::cancelled, std::move(what) + ": cancelled");
  }
  if (error.category() == boost::system::system_category() || error.category() == asio::error::get_system_category()) {
    return Error::from_errno(error.value(), std::move(what));
  }
  return Error(Errc::system, std::move(what) + ": " + error.message());
}

asio::awaitable<Result<std::string>> read_bytes(tcp::socket& socket, std::size_t count,
                                                std::chrono::milliseconds limit) {
  std::string bytes(count, '\0');
  const auto deadline = limit_of(socket, limit);
  const auto [error, size] = co_await asio::async_read(socket, asio::buffer(bytes), kAsTuple);
  if (error) {
    if (deadline && deadline->expired()) co_return timed_out("read", limit);
    co_return from_boost(error, "read");
  }
  co_return bytes;
}

asio::awaitable<Result<std::string>> read_frame(tcp::socket& socket, std::uint32_t max_bytes,
                                                std::chrono::milliseconds limit) {
  char head[4];
  const auto deadline = limit_of(socket, limit);
  const auto [error, size] = co_await asio::async_read(socket, asio::buffer(head), kAsTuple);
  if (error) {
    if (deadline && deadline->expired()) co_return timed_out("read", limit);
    co_return from_boost(error, "read");
  }
  WireReader reader(std::string_view(head, sizeof head));
  const std::uint32_t length = reader.u32();
  if (length == 0 || length > max_bytes) {
    co_return Error(Errc::malformed, "a frame of " + std::to_string(length) + " bytes; 1 to " +
                                         std::to_string(max_bytes) + " are allowed");
  }
  // Room is made as bytes come, not as they are announced.
  std::string frame;
  while (frame.size() < length) {
    const std::size_t have = frame.size();
    frame.resize(std::min<std::size_t>(length, std::max(kFirstRoom, 2 * have)));
    const auto room = asio::buffer(frame.data() + have, frame.size() - have);
    const auto [body_error, body_size] = co_await asio::async_read(socket, room, kAsTuple);
    if (body_error) {
      if (deadline && deadline->expired()) co_return timed_out("read", limit);
      co_return from_boost(body_error, "read");
    }
  }
  co_return frame;
}

asio::awaitable<Result<std::string>> read_bytes(SecureStream& stream, std::size_t count,
                                                std::chrono::milliseconds limit) {
  std::string bytes(count, '\0');
  auto got = co_await stream.read(bytes.data(), bytes.size(), limit);
  if (!got) co_return std::move(got).error();
  co_return bytes;
}

// `limit` is for the whole frame: a peer that sends a byte now and then does not get more time by that. The body is
// taken in steps, so that memory grows only with bytes that came.
asio::awaitable<Result<std::string>> read_frame(SecureStream& stream, std::uint32_t max_bytes,
                                                std::chrono::milliseconds limit) {
  const auto begin = std::chrono::steady_clock::now();
  char head[4];
  auto got = co_await stream.read(head, sizeof head, limit);
  if (!got) co_return std::move(got).error();
  WireReader reader(std::string_view(head, sizeof head));
  const std::uint32_t length = reader.u32();
  if (length == 0 || length > max_bytes) {
    co_return Error(Errc::malformed, "a frame of " + std::to_string(length) + " bytes; 1 to " +
                                         std::to_string(max_bytes) + " are allowed");
  }
  std::string frame;
  while (frame.size() < length) {
    const std::size_t before = frame.size();
    frame.resize(std::min<std::size_t>(length, std::max<std::size_t>(kFirstStep, before * 2)));
    std::chrono::milliseconds rest(0);
    if (limit.count() != 0) {
      const auto used = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
      rest = std::max(limit - used, std::chrono::milliseconds(1));
    }
    auto part = co_await stream.read(frame.data() + before, frame.size() - before, rest);
    if (!part && part.error().code() == Errc::timed_out) co_return timed_out("read", limit);
    if (!part) co_return std::move(part).error();
  }
  co_return frame;
}

asio::awaitable<Result<void>> write_bytes(SecureStream& stream, std::string bytes, std::chrono::milliseconds limit) {
  auto written = co_await stream.write(std::move(bytes), limit);
  co_return written;
}

asio::awaitable<Result<void>> write_bytes(tcp::socket& socket, std::string bytes, std::chrono::milliseconds limit) {
  const auto deadline = limit_of(socket, limit);
  const auto [error, size] = co_await asio::async_write(socket, asio::buffer(bytes), kAsTuple);
  if (error) {
    if (deadline && deadline->expired()) co_return timed_out("write", limit);
    co_return from_boost(error, "write");
  }
  co_return Result<void>();
}

}  // namespace ddprun
