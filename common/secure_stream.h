#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "common/result.h"

namespace ddprun {

class TlsContext;
class TlsEngine;

// A connection for coroutines: TCP, or a unix socket; plain, or TLS after handshake(). One reader and one writer at a
// time; one thread. Reading needs no buffer while nothing comes, so that ten thousand idle agents cost little.
class SecureStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  // `already_read`: what somebody else has taken off the socket, to tell protocols apart. A tcp::socket or a
  // local::stream_protocol::socket converts when moved.
  explicit SecureStream(Socket socket, std::string already_read = "");
  ~SecureStream();
  SecureStream(SecureStream&&) noexcept;
  SecureStream& operator=(SecureStream&&) noexcept;

  // From here on all is TLS. Errors: refused (see denied()), malformed, timed_out, peer_closed, cancelled; the last
  // word to the peer is sent before it returns.
  boost::asio::awaitable<Result<void>> handshake(std::shared_ptr<const TlsContext> context,
                                                 std::chrono::milliseconds limit);
  bool denied() const;           // the handshake failed, and another try with our key is pointless
  const TlsEngine* tls() const;  // nullptr: plain

  // Exactly `size` bytes. A limit of zero: none; somebody else must close the socket in time.
  boost::asio::awaitable<Result<void>> read(char* to, std::size_t size, std::chrono::milliseconds limit);
  bool has_unread() const;  // something lies here that was read from the socket and not by read()

  // What must go out for `bytes`: themselves, or TLS records; in this order, whole. For those who write with callbacks.
  Result<std::string> seal(std::string bytes);
  boost::asio::awaitable<Result<void>> write(std::string bytes, std::chrono::milliseconds limit);

  Socket& socket() { return socket_; }
  void close();  // both ways, at once

 private:
  boost::asio::awaitable<Result<void>> fill();
  boost::asio::awaitable<Result<void>> write_raw(std::string bytes);
  std::string& unread();

  Socket socket_;
  std::unique_ptr<TlsEngine> tls_;
  std::string buffer_;        // plain bytes that wait, if there is no TLS
  std::size_t consumed_ = 0;  // of unread()
};

}  // namespace ddprun
