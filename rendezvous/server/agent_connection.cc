#include "rendezvous/server/agent_connection.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "common/frame_io.h"
#include "common/log.h"
#include "common/tcp.h"
#include "common/wire.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds kHelloLimit{5};
constexpr std::chrono::seconds kCloseLimit{1};

}  // namespace

AgentConnection::AgentConnection(asio::ip::tcp::socket socket, std::string already_read, std::string greeting,
                                 Handlers handlers, std::shared_ptr<Strangers> strangers,
                                 std::shared_ptr<UnsentSum> sum)
    : socket_(std::move(socket)),
      already_read_(std::move(already_read)),
      greeting_(std::move(greeting)),
      handlers_(std::move(handlers)),
      descriptor_(socket_.native_handle()),
      strangers_(std::move(strangers)),
      sum_(std::move(sum)),
      stuck_(socket_.get_executor()),
      written_(socket_.get_executor(), asio::steady_timer::time_point::max()) {
  if (const auto remote = remote_endpoint(socket_.native_handle())) {
    peer_ = remote->to_string();
    peer_address_ = remote->host.substr(0, remote->host.find('%'));
    peer_is_loopback_ = is_loopback(remote->host);
  }
  if (const auto local = local_endpoint(socket_.native_handle())) own_address_ = local->host;
}

AgentConnection::~AgentConnection() {
  strangers_->leave(*this);
  sum_->bytes -= accounted_;
}

void AgentConnection::turn_away(std::string_view why) {
  if (!closed_ && handlers_.on_refused) handlers_.on_refused(*this, std::string(why));
  close(std::string(why));
}

void AgentConnection::welcome() {
  known_ = true;
  strangers_->leave(*this);
}

std::uint32_t AgentConnection::max_frame() const {
  if (!known_) return kMaxFirstFrame;
  return !is_operator_ && flights_asked_ > 0 ? rdzv::kMaxFrame : rdzv::kMaxAgentFrame;
}

// What may come is known only when it comes: we may have asked for something long meanwhile. Room is made as bytes
// come.
asio::awaitable<Result<std::string>> AgentConnection::next_frame() {
  auto head = co_await read_bytes(socket_, sizeof(std::uint32_t), read_limit);
  if (!head) co_return std::move(head).error();
  WireReader reader(*head);
  const std::uint32_t length = reader.u32();
  if (length == 0 || length > max_frame()) {
    co_return Error(Errc::malformed, "a frame of " + std::to_string(length) + " bytes; 1 to " +
                                         std::to_string(max_frame()) + " are allowed");
  }
  std::string frame;
  while (frame.size() < length) {
    const std::size_t more = std::min<std::size_t>(length - frame.size(), std::max<std::size_t>(4096, frame.size()));
    auto part = co_await read_bytes(socket_, more, read_limit);
    if (!part) {
      coming_ = 0;
      co_return std::move(part).error();
    }
    frame += *part;
    coming_ = frame.size();
    account();
    if (closed_) co_return Error(Errc::cancelled, close_reason_);
  }
  coming_ = 0;
  account();
  co_return frame;
}

void AgentConnection::account() {
  const std::size_t now = closed_ ? 0 : held();
  sum_->bytes += now - accounted_;
  const bool grew = now > accounted_;
  accounted_ = now;
  if (grew && sum_->bytes > UnsentSum::kMost && handlers_.on_too_much) handlers_.on_too_much();
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
  is_operator_ = !agent;
  bool lost = false;
  std::string why;
  while (!closed_) {
    Result<std::string> frame = std::string();
    if (already_read_.empty()) {
      frame = co_await next_frame();
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
      if (message && std::holds_alternative<rdzv::FlightReply>(*message) && flights_asked_ > 0) --flights_asked_;
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
      welcome();
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
  if (std::holds_alternative<rdzv::FlightRequest>(message)) ++flights_asked_;
  account();
  if (closed_) return;
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
  account();
  if (closed_) return;
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
                      self->account();
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
  strangers_->leave(*this);
  account();
  sources_.clear();
  stuck_.cancel();
  written_.cancel();
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace ddprun::rendezvous
