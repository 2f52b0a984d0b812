#include "launcher/agent/rendezvous_client.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "common/async_lookup.h"
#include "common/deadline.h"
#include "common/frame_io.h"
#include "common/log.h"
#include "common/rdzv_greeting.h"
#include "common/tcp.h"

namespace ddprun::launcher {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kFirstBackoff{20};
constexpr milliseconds kMaxBackoff{900};       // with the try itself: at least once a second
constexpr milliseconds kConnectLimit{3'000};   // SYNs that nobody answers
constexpr milliseconds kStrangerLimit{3'000};  // of who may be a stranger, with one of ours at the next port
constexpr milliseconds kLookupLimit{30'000};   // then the name is asked for anew
constexpr std::chrono::seconds kTell{10};      // how often a waiting user hears why
constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

milliseconds to_ms(Duration d) { return std::chrono::duration_cast<milliseconds>(d); }

}  // namespace

struct RendezvousClient::Impl : std::enable_shared_from_this<RendezvousClient::Impl> {
  enum class Standing { idle, joining, member, leaving };

  Impl(asio::io_context& context, ClientOptions o, ClientEvents e)
      : io(context),
        options(std::move(o)),
        events(std::move(e)),
        socket(context),
        lookup(context),
        backoff_timer(context),
        beat_timer(context),
        lease_timer(context),
        tell_timer(context),
        ended(context) {}

  // --- connecting

  asio::awaitable<void> run() {
    milliseconds backoff = kFirstBackoff;
    while (!closing) {
      const TimePoint begin = SteadyClock::now();
      auto connection = co_await connect();
      if (closing) break;
      if (connection) {
        auto over = co_await talk();
        if (closing) break;
        hang_up(over.error());
        if (!heard_here) problem = "it takes connections and greets, but nothing follows (" + problem + ")";
        // A server that greets and closes, again and again, is not one that works.
        if (useful_at >= begin) backoff = kFirstBackoff;
      } else {
        problem = connection.error().message();
        link_changed();
        const bool refused = connection.error().code() == Errc::refused;
        if (refused && replaceable() && events.on_nobody_there) events.on_nobody_there();
      }
      look_at_first_contact();
      if (closing || hopeless) break;
      backoff_timer.expires_after(backoff);
      backoff = std::min(backoff * 2, kMaxBackoff);
      co_await backoff_timer.async_wait(kAsTuple);
    }
    running = false;
    ended.cancel();
  }

  asio::awaitable<Result<void>> connect() {
    const TimePoint begin = SteadyClock::now();
    std::string host = options.endpoint.host;
    const std::string before = std::exchange(problem, "the name '" + host + "' is being looked up");
    const auto found = co_await lookup.ask(host, kLookupLimit);
    if (!found) co_return found.error();
    problem = before;
    std::vector<tcp::endpoint> candidates;
    boost::system::error_code ec;
    for (const std::string& address : *found) {
      const auto numeric = asio::ip::make_address(address, ec);
      for (std::uint16_t i = 0; !ec && i < options.ports; ++i) {
        candidates.emplace_back(numeric, static_cast<std::uint16_t>(options.endpoint.port + i));
      }
    }
    Error last(Errc::not_found, "'" + options.endpoint.host + "' has no address");
    foreign.reset();
    for (const tcp::endpoint& candidate : candidates) {
      if (closing) co_return Error(Errc::cancelled, "closing");
      auto opened = co_await open(candidate);
      if (!opened) {
        last = opened.error();
        if (!was_useful) contact.reset();  // nobody is there any more
        // "Refused" comes from the host itself: it is there, and no daemon is. (Unreachable is a router's word.)
        // Another address of the same name, where nobody ever listened, proves nothing.
        if (last.code() == Errc::refused && candidate == last_server) renew_lease(begin);
        continue;
      }
      socket.set_option(tcp::no_delay(true), ec);
      auto greeted = co_await greet();
      if (greeted) {
        last_server = candidate;
        co_return Result<void>();
      }
      // Closed before it answered proves nothing: a daemon without descriptors to spare does that, and it lives.
      last = greeted.error();
      socket.close(ec);
      if (foreign && !was_useful) contact.reset();  // read_timeout is for each address
    }
    if (foreign && !closing) co_return give_up(*std::exchange(foreign, std::nullopt));
    co_return last;
  }

  // kConnectLimit is for this alone: the greeting that follows may take read_timeout.
  asio::awaitable<Result<void>> open(tcp::endpoint candidate) {
    socket = tcp::socket(io);
    Deadline limit(socket.get_executor(), kConnectLimit, [this] {
      boost::system::error_code ignored;
      socket.close(ignored);
    });
    const auto [error] = co_await socket.async_connect(candidate, kAsTuple);
    if (!error) {
      if (!contact) contact = SteadyClock::now();
      co_return Result<void>();
    }
    if (limit.expired()) co_return Error(Errc::timed_out, "no answer from " + options.endpoint.to_string());
    co_return from_boost(error, "connect to " + options.endpoint.to_string());
  }

  asio::awaitable<Result<void>> greet() {
    rdzv::Hello hello;
    std::string bytes = rdzv::encode(hello);
    auto sent = co_await write_bytes(socket, std::move(bytes), options.read_timeout);
    if (!sent) co_return std::move(sent).error();
    // While a lease runs, a silent server must not hold us longer than that.
    milliseconds limit = was_useful ? std::min(options.read_timeout, options.node.job.lease()) : options.read_timeout;
    if (options.ports > 1) limit = std::min(limit, kStrangerLimit);
    problem = "connected, but no rendezvous answers there";
    auto fixed = co_await read_bytes(socket, rdzv::kHelloReplyFixedBytes, limit);
    if (!fixed) {
      const bool closed = fixed.error().code() == Errc::peer_closed;
      if (closed) co_return std::move(fixed).error().with_context("connected, but no rendezvous answers there");
      if (fixed.error().code() != Errc::timed_out || was_useful) co_return std::move(fixed).error();
      co_return not_ours("does not answer as a rendezvous within " + std::to_string(limit.count() / 1000) + " s");
    }
    auto head = rdzv::decode_hello_reply_head(*fixed);
    if (!head) co_return not_ours("answers, but " + head.error().message());
    auto why = co_await read_bytes(socket, head->why_bytes, limit);
    if (!why) co_return std::move(why).error();
    if (!head->accepted || head->version != rdzv::kVersion) co_return not_ours("refuses us: " + *why);
    const rdzv::EmbeddedGreeting greeting = rdzv::read_embedded_greeting(*why, options.node.run_id);
    if (greeting.refuses) {
      co_return Error(Errc::refused, options.endpoint.to_string() + " is the rendezvous of another job (" + *why + ")");
    }
    embedded = greeting.embedded;
    if (greeting.foreign && !std::exchange(borrowed, true)) {
      log_warning(
          "the rendezvous at {} is in a launcher of another job and ends with it; give this job an endpoint of its "
          "own, "
          "or run ddprun-rendezvous",
          options.endpoint.to_string());
    }
    borrowed = greeting.foreign;
    if (const auto local = local_endpoint(socket.native_handle())) own = local->host;
    if (const auto remote = remote_endpoint(socket.native_handle())) server = remote->host;
    // The lease stays as it is: who greets us has not heard who we are yet.
    co_return Result<void>();
  }

  // Somebody else sits at this address, and waiting will not change that. Another address of the name may be right.
  Error not_ours(const std::string& why) {
    std::string text = options.endpoint.to_string() + " ";
    if (const auto holder = port_holder(options.endpoint.port); holder && is_loopback(options.endpoint.host)) {
      text += "(held by " + *holder + ") ";
    }
    Error error(Errc::refused, text + why);
    if (!foreign && options.ports == 1) foreign = error;
    return error;
  }

  Error give_up(Error error) {
    hopeless = true;
    if (events.on_hopeless) events.on_hopeless(error);
    return error;
  }

  // Somebody takes our connections, and for read_timeout nothing came that a rendezvous would say.
  void look_at_first_contact() {
    if (closing || hopeless || was_useful || !contact || SteadyClock::now() < *contact + options.read_timeout) return;
    give_up(not_ours("does not work as a rendezvous for " + std::to_string(options.read_timeout.count() / 1000) +
                     " s: " + problem));
  }

  bool replaceable() const { return !online && (!was_useful || borrowed); }

  // --- connected

  asio::awaitable<Result<void>> talk() {
    online = true;
    heard_here = false;
    ++connections;
    unanswered.clear();
    out.clear();
    writing.clear();
    introduce();
    if (standing != Standing::idle) send_beat(false);  // its answer proves that this connection is of use
    beat();
    while (true) {
      auto frame = co_await read_frame(socket, rdzv::kMaxFrame, milliseconds(0));
      if (!frame) co_return std::move(frame).error();
      auto message = rdzv::decode_server(*frame);
      if (!message) co_return std::move(message).error();
      if (closing) co_return Error(Errc::cancelled, "closing");
      take(std::move(*message));
      if (closing) co_return Error(Errc::cancelled, "closing");
    }
  }

  // A working rendezvous says something to us.
  void useful() {
    useful_at = SteadyClock::now();
    was_useful = true;
    if (!heard_here && told_broken) log_info("connected to the rendezvous again at {}", options.endpoint.to_string());
    if (!heard_here) problem.clear();
    heard_here = true;
    told_broken = false;
    link_changed();
  }

  void link_changed() const {
    if (events.on_link) events.on_link();
  }

  void hang_up(const Error& why) {
    online = false;
    if (heard_here) broke_at = SteadyClock::now();
    problem = why.message();
    beat_timer.cancel();
    boost::system::error_code ignored;
    socket.close(ignored);
    // The lease stays as it is: a daemon that lives may have closed, and the FIN of a dead one may be as old as the
    // kernel's patience. The next try tells: refused, answered, or silence.
    if (!told_broken && !goodbye) {
      const bool member = standing == Standing::member || standing == Standing::leaving;
      log_warning("the connection to the rendezvous at {} is broken ({}): trying again{}", options.endpoint.to_string(),
                  why.message(), member ? ", workers run on" : "");
    }
    told_broken = true;
    goodbye = false;
    link_changed();
  }

  // On each new connection: who we are, and what may have been lost on the way.
  void introduce() {
    if (options.node.address.empty() || address_is_ours) {
      options.node.address = own.substr(0, own.find('%'));  // a zone means something on this host only
      address_is_ours = true;
    }
    if (standing == Standing::joining) {
      rdzv::Join join;
      join.node = options.node;
      join.connection = connections;
      join.last_round = last_round;
      join.session_key = options.session_key;
      send(join);
      return;
    }
    if (standing == Standing::idle) return;
    rdzv::Register registration;
    registration.node = options.node;
    registration.connection = connections;
    registration.slice = slice;
    registration.session_key = options.session_key;
    registration.slice.master = Endpoint();
    registration.state = pending_done      ? (*pending_done == rdzv::DoneResult::success ? rdzv::MemberState::finished
                                                                                         : rdzv::MemberState::resumable)
                         : pending_failure ? rdzv::MemberState::stopping
                                           : rdzv::MemberState::running;
    send(registration);
    if (pending_failure) send_failure();
    if (standing == Standing::leaving) send(farewell);
  }

  void send_failure() {
    rdzv::Failure failure = *pending_failure;
    failure.age += to_ms(SteadyClock::now() - failed_at);
    send(failure);
  }

  void take(rdzv::ServerMessage message) {
    auto* shutdown = std::get_if<rdzv::Shutdown>(&message);
    const bool stops = shutdown != nullptr && shutdown->cause == rdzv::ShutdownCause::daemon_stops;
    if (!stops) useful();
    if (auto* ack = std::get_if<rdzv::HeartbeatAck>(&message)) {
      while (!unanswered.empty() && unanswered.front().first <= ack->sequence) {
        renew_lease(unanswered.front().second);
        unanswered.pop_front();
      }
      if (!ack->reason.empty() && standing == Standing::joining) {
        log_info("waiting: {}{}", ack->reason, options.waiting_hint);
      }
      return;
    }
    if (std::holds_alternative<rdzv::Registered>(message)) return;
    if (stops) {
      goodbye = true;
      log_warning("the rendezvous stops ({}): workers run on, trying to reach the next one", shutdown->reason);
      told_broken = true;
      return;
    }
    const bool nobody_came = shutdown != nullptr && shutdown->cause == rdzv::ShutdownCause::too_few_nodes;
    if (nobody_came && standing == Standing::joining) shutdown->reason += options.waiting_hint;
    if (events.on_message) events.on_message(std::move(message));
  }

  void send(const rdzv::AgentMessage& message) {
    if (!online) return;
    out += rdzv::encode(message);
    if (writing.empty()) write_next();
  }

  void write_next() {
    writing = std::exchange(out, std::string());
    if (writing.empty()) {
      ended.cancel();  // close() waits for this
      return;
    }
    asio::async_write(socket, asio::buffer(writing),
                      [self = shared_from_this()](const boost::system::error_code& error, std::size_t) {
                        self->writing.clear();
                        if (!error) self->write_next();
                      });
  }

  // --- lease

  void beat() {
    beat_timer.expires_after(options.node.job.keep_alive_interval);
    beat_timer.async_wait([weak = std::weak_ptr<Impl>(shared_from_this())](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (error || !self || !self->online) return;
      self->send_beat(false);
      self->beat();
    });
  }

  void send_beat(bool want_reason) {
    rdzv::Heartbeat heartbeat;
    heartbeat.sequence = ++sequence;
    heartbeat.want_reason = want_reason;
    unanswered.emplace_back(sequence, SteadyClock::now());
    send(heartbeat);
  }

  TimePoint lease_end() const { return lease_from + options.node.job.lease(); }

  void renew_lease(TimePoint proven) {
    if (proven <= lease_from) return;
    lease_from = proven;
    lease_expired = false;
    if (events.on_lease) events.on_lease(lease_end());
  }

  // Looks when the lease is over, not when the next beat is due: what the rendezvous waits for is counted from then.
  void watch_lease() {
    lease_timer.expires_at(lease_expired ? SteadyClock::now() + options.node.job.lease() : lease_end());
    lease_timer.async_wait([weak = std::weak_ptr<Impl>(shared_from_this())](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (error || !self || self->closing) return;
      self->look_at_lease();
      self->watch_lease();
    });
  }

  void look_at_lease() {
    if (lease_expired || SteadyClock::now() < lease_end()) return;
    lease_expired = true;
    if (online) {
      // The connection is of no use any more; a new one finds out sooner whether the way is open again.
      log_warning("the rendezvous at {} is silent for {} ms", options.endpoint.to_string(),
                  options.node.job.lease().count());
      told_broken = true;
      // No FIN yet: see the header. The socket itself is kept, since a copy of it may not be had (no descriptors).
      abandoned.emplace(std::move(socket));
      socket = tcp::socket(io);
      boost::system::error_code ignored;
      abandoned->cancel(ignored);
    }
    const bool member = standing == Standing::member || standing == Standing::leaving;
    if (member && events.on_lease_expired) events.on_lease_expired();
  }

  // --- telling

  std::string why() const { return problem + options.waiting_hint; }

  void tell() {
    tell_timer.expires_after(kTell);
    tell_timer.async_wait([weak = std::weak_ptr<Impl>(shared_from_this())](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (error || !self || self->closing) return;
      if (self->standing == Standing::joining) {
        if (self->online) self->send_beat(true);
        if (!self->online || !self->heard_here) {
          log_info("waiting for the rendezvous at {}: {}", self->options.endpoint.to_string(), self->why());
        }
      }
      self->tell();
    });
  }

  asio::io_context& io;
  ClientOptions options;
  ClientEvents events;
  tcp::socket socket;
  AsyncLookup lookup;
  tcp::endpoint last_server;  // that answered last
  asio::steady_timer backoff_timer, beat_timer, lease_timer, tell_timer, ended;
  bool running = false, closing = false, hopeless = false;
  std::optional<TimePoint> contact;  // since when somebody takes our connections, until something useful came
  std::optional<Error> foreign;      // of this try: what the first address said at which somebody else sits
  TimePoint useful_at;
  TimePoint broke_at;                           // when the last connection of use broke
  bool was_useful = false, heard_here = false;  // ever; on this connection
  bool online = false, told_broken = false, embedded = false, goodbye = false;
  bool borrowed = false;  // what greeted us last is embedded in a launcher of another job
  bool address_is_ours = false;
  std::uint64_t connections = 0;
  std::string problem = "not tried yet";
  std::string own, server;

  Standing standing = Standing::idle;
  Round last_round;
  rdzv::Assignment slice;
  std::optional<rdzv::DoneResult> pending_done;
  std::optional<rdzv::Failure> pending_failure;
  rdzv::Leave farewell;
  TimePoint failed_at;
  std::optional<tcp::socket> abandoned;  // the connection in which nothing was answered any more

  std::string out, writing;
  std::uint64_t sequence = 0;
  std::deque<std::pair<std::uint64_t, TimePoint>> unanswered;
  TimePoint lease_from;
  bool lease_expired = false;
};

RendezvousClient::RendezvousClient(asio::io_context& io, ClientOptions options, ClientEvents events)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(events))) {}

RendezvousClient::~RendezvousClient() {
  impl_->closing = true;
  impl_->events = ClientEvents();
}

void RendezvousClient::start() {
  impl_->running = true;
  impl_->lease_from = impl_->useful_at = SteadyClock::now();
  impl_->tell();
  impl_->watch_lease();
  asio::co_spawn(impl_->io, impl_->run(), [self = impl_](std::exception_ptr failure) {
    self->running = false;
    self->ended.cancel();
    if (failure) std::rethrow_exception(failure);
  });
}

void RendezvousClient::set_endpoint(Endpoint endpoint) { impl_->options.endpoint = std::move(endpoint); }

void RendezvousClient::join(Round last_round, std::uint16_t worker_store_port) {
  impl_->standing = Impl::Standing::joining;
  impl_->last_round = last_round;
  impl_->options.node.worker_store_port = worker_store_port;
  impl_->pending_done.reset();
  impl_->pending_failure.reset();
  impl_->abandoned.reset();
  if (!impl_->online) return;
  impl_->introduce();
  impl_->send_beat(false);  // after a pause the lease must not end what the next round starts
}

void RendezvousClient::assigned(const rdzv::Assignment& slice) {
  impl_->standing = Impl::Standing::member;
  impl_->slice = slice;
}

void RendezvousClient::done(rdzv::DoneResult result) {
  impl_->pending_done = result;
  rdzv::Done done;
  done.round = impl_->slice.round;
  done.result = result;
  impl_->send(done);
}

void RendezvousClient::failed(rdzv::Failure failure) {
  impl_->pending_failure = std::move(failure);
  impl_->failed_at = SteadyClock::now();
  if (impl_->online) impl_->send_failure();
}

void RendezvousClient::leave(std::string reason) {
  rdzv::Leave leave;
  leave.round = impl_->slice.round;
  leave.reason = std::move(reason);
  impl_->send(leave);
  impl_->farewell = std::move(leave);
  const bool member = impl_->standing == Impl::Standing::member;
  impl_->standing = member ? Impl::Standing::leaving : Impl::Standing::idle;
}

void RendezvousClient::send_flight(rdzv::FlightReply reply) { impl_->send(reply); }

asio::awaitable<void> RendezvousClient::close(milliseconds limit) {
  const auto impl = impl_;
  const TimePoint end = SteadyClock::now() + limit;
  while (impl->online && !(impl->writing.empty() && impl->out.empty()) && SteadyClock::now() < end) {
    impl->ended.expires_at(end);
    co_await impl->ended.async_wait(kAsTuple);
  }
  impl->closing = true;
  impl->online = false;
  boost::system::error_code ignored;
  // FIN, not RST: what we sent must arrive although something unread may lie in our buffer.
  impl->socket.shutdown(tcp::socket::shutdown_send, ignored);
  impl->socket.close(ignored);
  impl->lookup.cancel();
  impl->backoff_timer.cancel();
  impl->beat_timer.cancel();
  impl->lease_timer.cancel();
  impl->tell_timer.cancel();
  impl->abandoned.reset();
  const TimePoint patience = SteadyClock::now() + milliseconds(200);
  while (impl->running && SteadyClock::now() < patience) {
    impl->ended.expires_at(patience);
    co_await impl->ended.async_wait(kAsTuple);
  }
  impl->events = ClientEvents();
}

bool RendezvousClient::server_is_embedded() const { return impl_->embedded; }
std::optional<TimePoint> RendezvousClient::disconnected_since() const {
  if (impl_->online && impl_->heard_here) return std::nullopt;
  return std::max(impl_->useful_at, impl_->broke_at);
}
bool RendezvousClient::ever_useful() const { return impl_->was_useful; }
TimePoint RendezvousClient::last_useful() const { return impl_->useful_at; }
bool RendezvousClient::replaceable() const { return impl_->replaceable(); }
TimePoint RendezvousClient::lease_end() const { return impl_->lease_end(); }
std::string RendezvousClient::last_problem() const { return impl_->why(); }
std::string RendezvousClient::server_address() const { return impl_->server; }

}  // namespace ddprun::launcher
