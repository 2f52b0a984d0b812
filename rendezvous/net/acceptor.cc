#include "rendezvous/net/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/log.h"
#include "rendezvous/net/listeners.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::size_t kAccepts = 8192;  // connections taken in a row
constexpr std::size_t kFirstBytes = 64 * 1024;
constexpr std::chrono::milliseconds kAcceptPause{100};

bool has_ended(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state != TCP_ESTABLISHED;
}

}  // namespace

// A connection without a taker.
struct Acceptor::Pending final : EventSet::Watcher, Stranger {
  Pending(Acceptor& a, UniqueFd f) : acceptor(a), fd(std::move(f)) {}
  void on_events(std::uint32_t) override { acceptor.on_first_bytes(*this); }
  int descriptor() const override { return fd.get(); }
  void turn_away(std::string_view why) override {
    ++acceptor.counts_.silent;
    acceptor.silent_log_.note([&](std::uint64_t n) {
      const auto peer = remote_endpoint(fd.get());
      log_info("closed a connection: {} peer={} so_far={}", why, peer ? peer->to_string() : "unknown", n);
    });
    acceptor.remove(*this);
  }

  Acceptor& acceptor;
  UniqueFd fd;
  EventSet::Tag tag = 0;
};

struct Acceptor::Door final : EventSet::Doorkeeper {
  explicit Door(Acceptor& a) : acceptor(a) {}
  std::size_t on_listener(std::size_t which) override { return acceptor.accept_all(which); }
  std::size_t look_again() override {
    std::size_t taken = 0;
    for (std::size_t i = 0; i < acceptor.listeners_.size(); ++i) taken += acceptor.accept_all(i);
    return taken;
  }
  Acceptor& acceptor;
};

Acceptor::Acceptor(asio::io_context& io, Listener listener, Strangers::Limits limits)
    : io_(io),
      port_(listener.port),
      listeners_(listen_side_by_side(std::move(listener.fd))),
      events_(std::make_shared<EventSet>(io)),
      strangers_(std::make_shared<Strangers>(io, limits)),
      door_(std::make_unique<Door>(*this)),
      takers_(257),
      scratch_(kFirstBytes),
      pause_(std::make_shared<asio::steady_timer>(io)) {
  spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  events_->start();
  events_->set_doorkeeper(door_.get());
  watch();
}

Acceptor::~Acceptor() { close(); }

void Acceptor::set_taker(int first, Taker taker) {
  takers_[first < 0 ? 256 : static_cast<std::size_t>(first)] = std::move(taker);
}

const Acceptor::Taker* Acceptor::taker_of(unsigned char first) const {
  const Taker& own = takers_[first];
  if (own) return &own;
  return takers_[256] ? &takers_[256] : nullptr;
}

void Acceptor::watch() {
  if (held_) return;
  for (std::size_t i = 0; i < listeners_.size(); ++i) events_->watch_listener(listeners_[i].get(), i);
}

std::size_t Acceptor::accept_all(std::size_t which) {
  const int from = listeners_[which].get();
  const TimePoint now = SteadyClock::now();
  for (std::size_t taken = 0;; ++taken) {
    if (taken == kAccepts) return taken;
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    UniqueFd fd(::accept4(from, reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      if (!held_ || !has_ended(fd.get())) add(std::move(fd), PeerKey::of(address), now);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return taken;
    if (errno == EMFILE || errno == ENFILE) {
      // The spare descriptor lets us take the connection: one that has said nothing yet goes for it. If there is none,
      // it is closed: its client learns at once, and the listener does not stay readable for ever.
      spare_.reset();
      length = sizeof address;
      fd.reset(::accept4(from, reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const bool none_waits = !fd && (errno == EAGAIN || errno == EWOULDBLOCK);
      const bool took_one = static_cast<bool>(fd);
      if (took_one && strangers_->make_room()) {
        add(std::move(fd), PeerKey::of(address), now);
      } else if (took_one) {
        fd.reset();
        note_refusal();
      }
      spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (none_waits) return taken;  // accept4 looks for a descriptor before it looks for a connection
      if (took_one && spare_) continue;
    }
    pause();
    return taken;
  }
}

void Acceptor::note_refusal() {
  ++counts_.refused;
  descriptor_log_.note([&](std::uint64_t n) {
    log_warning(
        "no room for another connection: out of descriptors (ulimit -n); those that are connected are served on "
        "refused={}",
        n);
  });
}

void Acceptor::pause() {
  for (const UniqueFd& fd : listeners_) events_->unwatch_listener(fd.get());
  pause_->expires_after(kAcceptPause);
  pause_->async_wait([this, alive = std::weak_ptr<asio::steady_timer>(pause_)](const boost::system::error_code& error) {
    if (!error && !alive.expired() && !closed_) watch();
  });
}

bool Acceptor::add(UniqueFd fd, const PeerKey& key, TimePoint now) {
  auto pending = std::make_unique<Pending>(*this, std::move(fd));
  if (!events_->add(pending->fd.get(), EPOLLIN, *pending, pending->tag)) return false;
  ++counts_.accepted;
  ++pending_count_;
  const std::size_t index = EventSet::index_of(pending->tag);
  if (index >= pending_.size()) pending_.resize(index + 1);
  Pending& added = *pending;
  pending_[index] = std::move(pending);
  strangers_->enter(added, key, now);
  return true;
}

void Acceptor::remove(Pending& pending) {
  strangers_->leave(pending);
  events_->forget(pending.tag);
  --pending_count_;
  pending_[EventSet::index_of(pending.tag)].reset();
}

void Acceptor::on_first_bytes(Pending& pending) {
  const ssize_t n = ::recv(pending.fd.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
  const Taker* taker = n > 0 ? taker_of(static_cast<unsigned char>(scratch_[0])) : nullptr;
  if (taker == nullptr) {
    remove(pending);
    return;
  }
  // Out of our list, but alive until the taker has seen it.
  const std::unique_ptr<Pending> kept = std::move(pending_[EventSet::index_of(pending.tag)]);
  --pending_count_;
  const EventSet::Tag tag = kept->tag;
  events_->set_watcher(tag, *kept);
  (*taker)(Opening{std::move(kept->fd), tag, std::string_view(scratch_.data(), static_cast<std::size_t>(n)), *kept});
  strangers_->leave(*kept);
  if (events_->watches(tag) && events_->watcher(tag) == kept.get()) events_->forget(tag);
}

std::optional<tcp::socket> Acceptor::to_socket(Opening& opening) {
  events_->release(opening.tag, opening.fd.get());
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(opening.fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
  tcp::socket socket(io_);
  boost::system::error_code error;
  socket.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), opening.fd.get(), error);
  if (error) return std::nullopt;
  [[maybe_unused]] const int owned_by_socket = opening.fd.release();
  return socket;
}

void Acceptor::drop_spoken(int first) {
  if (closed_ || held_) return;
  for (std::size_t i = 0; i < listeners_.size(); ++i) accept_all(i);
  const Taker* const wanted = &takers_[first < 0 ? 256 : static_cast<std::size_t>(first)];
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Pending* const pending = pending_[i].get();
    if (pending == nullptr) continue;
    unsigned char byte = 0;
    const ssize_t n = ::recv(pending->fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    const bool silent = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (silent || (n == 1 && taker_of(byte) != wanted)) continue;
    remove(*pending);
  }
}

void Acceptor::hold() {
  if (closed_ || held_) return;
  held_ = true;
  for (const UniqueFd& fd : listeners_) events_->unwatch_listener(fd.get());
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i]) remove(*pending_[i]);
  }
}

void Acceptor::serve() {
  if (closed_ || !held_) return;
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    while (accept_all(i) == kAccepts) {
    }
  }
  held_ = false;
  watch();
}

void Acceptor::stop() {
  if (closed_) return;
  for (UniqueFd& fd : listeners_) {
    events_->unwatch_listener(fd.get());
    fd.reset();
  }
  listeners_.clear();
}

void Acceptor::close() {
  if (closed_) return;
  closed_ = true;
  pause_->cancel();
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i]) remove(*pending_[i]);
  }
  strangers_->close();
  events_->close();
  listeners_.clear();
  spare_.reset();
}

}  // namespace ddprun::rendezvous
