#include "rendezvous/server/agent_connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "common/frame_io.h"
#include "common/log.h"
#include "common/tcp.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds kHelloLimit{10};
constexpr std::chrono::seconds kCloseLimit{1};

}  // namespace

AgentConnection::AgentConnection(asio::ip::tcp::socket socket, std::string already_read, std::string greeting,
                                 Handlers handlers)
    : socket_(std::move(socket)),
      already_read_(std::move(already_read)),
      greeting_(std::move(greeting)),
      handlers_(std::move(handlers)),
      stuck_(socket_.get_executor()),
      written_(socket_.get_executor(), asio::steady_timer::time_point::max()) {
  if (const auto remote = remote_endpoint(socket_.native_handle())) {
    peer_ = remote->to_string();
    peer_address_ = remote->host.substr(0, remote->host.find('%'));
    peer_is_loopback_ = is_loopback(remote->host);
  }
  if (const auto local = local_endpoint(socket_.native_handle())) own_address_ = local->host;
}

asio::awaitable<Result<rdzv::Hello>> AgentConnection::handshake() {
  std::string opening = std::move(already_read_);
  if (opening.size() < rdzv::kHelloBytes) {
    auto rest = co_await read_bytes(socket_, rdzv::kHelloBytes - opening.size(), kHelloLimit);
    if (!rest) co_return std::move(rest).error();
    opening += *rest;
  }
  // Whatever came after the opening in the same read.
  already_read_ = opening.substr(rdzv::kHelloBytes);
  auto hello = rdzv::decode_hello(std::string_view(opening).substr(0, rdzv::kHelloBytes));
  rdzv::HelloReply reply;
  reply.why = greeting_;
  if (hello && hello->version != rdzv::kVersion) {
    reply.accepted = false;
    reply.why = rdzv::version_mismatch(rdzv::kVersion, hello->version);
  } else if (!hello) {
    reply.accepted = false;
    reply.why = hello.error().message();
  }
  std::string bytes = rdzv::encode(reply);
  auto written = co_await write_bytes(socket_, std::move(bytes), kHelloLimit);
  if (!reply.accepted) co_return Error(Errc::malformed, reply.why);
  if (!written) co_return std::move(written).error();
  co_return hello;
}

asio::awaitable<void> AgentConnection::run() {
  const auto self = shared_from_this();
  auto hello = co_await handshake();
  if (!hello) {
    if (!closed_ && handlers_.on_refused) handlers_.on_refused(*this, hello.error().message());
    close(hello.error().message());
    handlers_.on_end(*this, false, close_reason_);
    co_return;
  }
  const bool agent = hello->kind == rdzv::PeerKind::agent;
  const std::uint32_t max_frame = agent ? rdzv::kMaxFrame : rdzv::kMaxAgentFrame;
  is_operator_ = !agent;
  bool lost = false;
  std::string why;
  while (!closed_) {
    Result<std::string> frame = std::string();
    if (already_read_.empty()) {
      frame = co_await read_frame(socket_, max_frame, read_limit);
    } else {
      // Agents wait for our reply before they go on, so this is no agent.
      frame = Error(Errc::malformed, "bytes before the opening was answered");
    }
    if (!frame) {
      lost = frame.error().code() == Errc::peer_closed && !gave_up_;
      why = frame.error().message();
      const bool unknown = agent && node_id.value.empty() && frame.error().code() == Errc::timed_out;
      if (unknown) why = "it sent no Join within " + std::to_string(read_limit.count()) + " ms after its opening";
      if (unknown || frame.error().code() == Errc::malformed) {
        log_warning("{} {}: {}: connection closed", agent ? "agent" : "operator", peer_, why);
      }
      break;
    }
    if (agent) {
      auto message = rdzv::decode_agent(*frame);
      const bool too_long =
          message && frame->size() > rdzv::kMaxAgentFrame && !std::holds_alternative<rdzv::FlightReply>(*message);
      if (!message || too_long) {
        why = message ? "a message of " + std::to_string(frame->size()) + " bytes" : message.error().message();
        log_warning("agent {}: {}: connection closed", peer_, why);
        break;
      }
      handlers_.on_agent(*this, std::move(*message));
    } else {
      auto message = rdzv::decode_operator(*frame);
      if (!message) {
        why = message.error().message();
        log_warning("operator {}: {}: connection closed", peer_, why);
        break;
      }
      read_limit = kOperatorLimit;
      // One answer at a time: what nobody reads is not made, and no answer gets into the middle of another one. While
      // an answer is collected the end of the connection is still seen, so the wait for it is here.
      co_await collected();
      if (closed_) break;
      handlers_.on_operator(*this, std::move(*message));
      co_await all_written();
    }
  }
  close(why);
  handlers_.on_end(*this, lost, close_reason_);
}

asio::awaitable<void> AgentConnection::all_written() {
  constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
  while (!closed_ && !writing_.empty()) co_await written_.async_wait(as_tuple);
}

asio::awaitable<void> AgentConnection::collected() {
  constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
  while (!closed_ && collecting_) co_await written_.async_wait(as_tuple);
}

void AgentConnection::collect() { collecting_ = true; }

void AgentConnection::end_collecting() {
  collecting_ = false;
  written_.cancel();
}

void AgentConnection::send(const rdzv::ServerMessage& message) {
  if (closed_ || closing_) return;
  queued_ += rdzv::encode(message);
  if (unsent() > (is_operator_ ? kMaxUnsentOperator : kMaxUnsent)) {
    close("it reads too slowly: " + std::to_string(unsent()) + " bytes wait for it");
    return;
  }
  if (writing_.empty()) write_next();
}

void AgentConnection::stream(Source source) {
  if (closed_ || closing_) return;
  sources_.push_back(std::move(source));
  if (writing_.empty()) write_next();
}

void AgentConnection::write_next() {
  writing_ = std::exchange(queued_, std::string());
  while (writing_.empty() && !sources_.empty()) {
    if (const auto message = sources_.front()()) {
      writing_ = rdzv::encode(*message);
    } else {
      sources_.pop_front();
    }
  }
  if (writing_.empty()) {
    written_.cancel();
    if (closing_) close(close_reason_);
    return;
  }
  if (is_operator_) {
    stuck_.expires_after(kStuckLimit);
    stuck_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (!error && self) self->close("it reads nothing");
    });
  }
  asio::async_write(socket_, asio::buffer(writing_),
                    [self = shared_from_this()](const boost::system::error_code& error, std::size_t) {
                      self->writing_.clear();
                      self->stuck_.cancel();
                      if (error) {
                        // The reader sees the end too, but the kernel tells the reason only once.
                        self->gave_up_ = from_boost(error, "write").code() != Errc::peer_closed;
                        self->sources_.clear();
                        self->end_collecting();
                      }
                      if (self->closed_ || error) return;
                      self->write_next();
                      if (self->is_operator_ && self->writing_.empty() && self->handlers_.on_drained) {
                        self->handlers_.on_drained(*self);
                      }
                    });
}

void AgentConnection::close_after_sending() {
  if (closed_ || closing_) return;
  closing_ = true;
  if (writing_.empty()) {
    write_next();
    if (closed_) return;
  }
  auto timer = std::make_shared<asio::steady_timer>(socket_.get_executor(), kCloseLimit);
  timer->async_wait(
      [self = shared_from_this(), timer](const boost::system::error_code&) { self->close(self->close_reason_); });
}

void AgentConnection::close(const std::string& why) {
  if (closed_) return;
  closed_ = true;
  close_reason_ = why;
  sources_.clear();
  stuck_.cancel();
  written_.cancel();
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace ddprun::rendezvous
