#include "common/secure_stream.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/deadline.h"
#include "common/frame_io.h"
#include "common/tls_engine.h"

namespace ddprun {

namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kChunk = 16384;
constexpr std::size_t kSmall = 4096;         // below that a read takes what follows along
constexpr milliseconds kLastWordLimit{300};  // for the alert to go out, and for the sentence behind one to come

std::unique_ptr<Deadline> limit_of(SecureStream::Socket& socket, milliseconds limit) {
  if (limit.count() == 0) return nullptr;
  return std::make_unique<Deadline>(socket.get_executor(), limit, [&socket] {
    boost::system::error_code ignored;
    socket.cancel(ignored);
  });
}

Error after(const Deadline* deadline, milliseconds limit, const Error& error, const char* what) {
  if (deadline == nullptr || !deadline->expired()) return error;
  return Error(Errc::timed_out, std::string(what) + ": nothing for " + std::to_string(limit.count()) + " ms");
}

}  // namespace

SecureStream::SecureStream(Socket socket, std::string already_read)
    : socket_(std::move(socket)), buffer_(std::move(already_read)) {}
SecureStream::~SecureStream() = default;
SecureStream::SecureStream(SecureStream&&) noexcept = default;
SecureStream& SecureStream::operator=(SecureStream&&) noexcept = default;

bool SecureStream::denied() const { return tls_ && tls_->denied(); }
const TlsEngine* SecureStream::tls() const { return tls_.get(); }
std::string& SecureStream::unread() { return tls_ ? tls_->plain() : buffer_; }
bool SecureStream::has_unread() const { return (tls_ ? tls_->plain() : buffer_).size() > consumed_; }

// Takes what the socket has, at least one byte. The chunk is nobody's while we wait.
asio::awaitable<Result<void>> SecureStream::fill() {
  static thread_local char chunk[kChunk];
  while (true) {
    boost::system::error_code error;
    if (!socket_.non_blocking()) socket_.non_blocking(true, error);
    const std::size_t size = error ? 0 : socket_.read_some(asio::buffer(chunk), error);
    if (!error) {
      const std::string_view bytes(chunk, size);
      if (!tls_) {
        buffer_ += bytes;
        co_return Result<void>();
      }
      auto taken = tls_->receive(bytes);
      co_return taken;
    }
    if (error == asio::error::interrupted) continue;
    if (error != asio::error::would_block && error != asio::error::try_again) co_return from_boost(error, "read");
    const auto [waited] = co_await socket_.async_wait(Socket::wait_read, kAsTuple);
    if (waited) co_return from_boost(waited, "read");
  }
}

asio::awaitable<Result<void>> SecureStream::handshake(std::shared_ptr<const TlsContext> context, milliseconds limit) {
  auto engine = TlsEngine::make(std::move(context));
  if (!engine) co_return std::move(engine).error();
  tls_ = std::make_unique<TlsEngine>(std::move(*engine));
  const auto deadline = limit_of(socket_, limit);
  std::string early = buffer_.substr(consumed_);
  buffer_.clear();
  consumed_ = 0;
  Result<void> state = early.empty() ? Result<void>() : tls_->receive(early);
  while (state && !tls_->established()) {
    std::string out = tls_->take_output();
    if (!out.empty()) state = co_await write_raw(std::move(out));
    if (state) state = co_await fill();
  }
  std::string last = tls_->take_output();
  if (state && !last.empty()) {
    state = co_await write_raw(std::move(last));
  } else if (!last.empty()) {
    const auto soon = limit_of(socket_, kLastWordLimit);
    auto ignored = co_await write_raw(std::move(last));
    (void)ignored;
  }
  if (state) co_return state;
  const Errc code = state.error().code();
  const bool end = code == Errc::peer_closed || code == Errc::timed_out || code == Errc::cancelled;
  if (end && tls_->denied()) co_return tls_->at_end();  // an alert without the sentence
  if (code == Errc::peer_closed) co_return tls_->at_end();
  co_return after(deadline.get(), limit, state.error(), "the TLS handshake");
}

asio::awaitable<Result<void>> SecureStream::read(char* to, std::size_t size, milliseconds limit) {
  std::unique_ptr<Deadline> deadline;
  while (true) {
    std::string& waiting = unread();
    const std::size_t there = std::min(size, waiting.size() - consumed_);
    std::memcpy(to, waiting.data() + consumed_, there);
    consumed_ += there;
    to += there;
    size -= there;
    if (consumed_ == waiting.size()) {
      consumed_ = 0;
      std::string().swap(waiting);
    }
    if (size == 0) co_return Result<void>();
    if (!deadline) deadline = limit_of(socket_, limit);
    if (tls_ && tls_->peer_ended()) co_return Error(Errc::peer_closed, "read: the peer closed the connection");
    if (!tls_ && size >= kSmall) {
      const auto [error, got] = co_await socket_.async_read_some(asio::buffer(to, size), kAsTuple);
      if (error) co_return after(deadline.get(), limit, from_boost(error, "read"), "read");
      to += got;
      size -= got;
      continue;
    }
    auto filled = co_await fill();
    if (!filled) co_return after(deadline.get(), limit, filled.error(), "read");
  }
}

Result<std::string> SecureStream::seal(std::string bytes) {
  if (!tls_) return bytes;
  return tls_->seal(bytes);
}

asio::awaitable<Result<void>> SecureStream::write_raw(std::string bytes) {
  const auto [error, size] = co_await asio::async_write(socket_, asio::buffer(bytes), kAsTuple);
  if (error) co_return from_boost(error, "write");
  co_return Result<void>();
}

asio::awaitable<Result<void>> SecureStream::write(std::string bytes, milliseconds limit) {
  auto sealed = seal(std::move(bytes));
  if (!sealed) co_return std::move(sealed).error();
  const auto deadline = limit_of(socket_, limit);
  auto written = co_await write_raw(std::move(*sealed));
  if (!written) co_return after(deadline.get(), limit, written.error(), "write");
  co_return Result<void>();
}

void SecureStream::close() {
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace ddprun
