#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/result.h"
#include "common/secure_stream.h"

// The leaves that touch sockets in asynchronous code. Above them nothing knows Boost's error codes.
// EOF, reset and broken pipe are peer_closed; a connection that the kernel gave up (ETIMEDOUT) is timed_out: silence is
// not a death. Cancelling the coroutine, or closing the socket from our side, gives cancelled.
namespace ddprun {

// A limit of zero means none: then somebody else must close the socket in time.
boost::asio::awaitable<Result<std::string>> read_bytes(boost::asio::ip::tcp::socket& socket, std::size_t count,
                                                       std::chrono::milliseconds limit);
// u32 length (1 .. max_bytes, checked before anything is allocated) and that many bytes; the length is left out.
boost::asio::awaitable<Result<std::string>> read_frame(boost::asio::ip::tcp::socket& socket, std::uint32_t max_bytes,
                                                       std::chrono::milliseconds limit);
boost::asio::awaitable<Result<void>> write_bytes(boost::asio::ip::tcp::socket& socket, std::string bytes,
                                                 std::chrono::milliseconds limit);

// The same over a connection that may be TLS.
boost::asio::awaitable<Result<std::string>> read_bytes(SecureStream& stream, std::size_t count,
                                                       std::chrono::milliseconds limit);
boost::asio::awaitable<Result<std::string>> read_frame(SecureStream& stream, std::uint32_t max_bytes,
                                                       std::chrono::milliseconds limit);
boost::asio::awaitable<Result<void>> write_bytes(SecureStream& stream, std::string bytes,
                                                 std::chrono::milliseconds limit);

Error from_boost(const boost::system::error_code& error, std::string what);

}  // namespace ddprun
