#include "rendezvous/store/store_service.h"

#include <malloc.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/tcp.h"

namespace ddprun::rendezvous {

namespace {

constexpr std::size_t kReadChunk = 256 * 1024;
constexpr std::chrono::milliseconds kEndTime{60'000};
constexpr std::size_t kHalfProgress = 64 * 1024;  // of a long request, that gives it its time again
constexpr std::size_t kTrimFrom = std::size_t{64} << 20;

std::string peer_text(int fd) {
  const auto peer = remote_endpoint(fd);
  return peer ? peer->to_string() : std::string("an unknown peer");
}

}  // namespace

StoreService::StoreService(Acceptor& acceptor, StoreServerOptions options)
    : acceptor_(acceptor),
      events_(acceptor.events()),
      options_(options),
      setups_(acceptor.context(), options.setup_timeout,
              [this](StoreConnection& late) { too_late(late, "sent no VALIDATE", options_.setup_timeout); }),
      halves_(acceptor.context(), options.half_request_timeout,
              [this](StoreConnection& late) {
                too_late(late, "sent the first part of a request, and not the rest", options_.half_request_timeout);
              }),
      ends_(acceptor.context(), kEndTime,
            [this](StoreConnection& late) { too_late(late, "has ended and did not take its last answers", kEndTime); }),
      scratch_(kReadChunk) {
  limits_.decoder.max_list_bytes = options_.max_request_bytes;
  limits_.max_store_bytes = options_.max_store_bytes;
  limits_.max_unread_bytes = options_.max_unread_bytes;
  acceptor_.set_taker(Acceptor::kAnyOther, [this](Acceptor::Opening opening) { adopt(std::move(opening)); });
  events_.on_turn_end([this] { trim(); });
}

StoreService::~StoreService() { close(); }

// After a burst of keys the allocator keeps what it got from the kernel.
void StoreService::trim() {
  peak_bytes_ = std::max(peak_bytes_, store_.bytes());
  if (peak_bytes_ < kTrimFrom || store_.bytes() > peak_bytes_ / 4) return;
  peak_bytes_ = store_.bytes();
  ::malloc_trim(0);
}

void StoreService::adopt(Acceptor::Opening opening) {
  if (closed_) return;
  if (options_.max_connections > 0 && live_ >= options_.max_connections) {
    refuse_for_number();
    return;
  }
  const std::size_t id = EventSet::index_of(opening.tag);
  if (id >= connections_.size()) connections_.resize(id + 1);
  connections_[id] =
      std::make_unique<StoreConnection>(*this, std::move(opening.fd), opening.tag, store_, limits_, counts_.requests);
  StoreConnection& connection = *connections_[id];
  events_.set_watcher(opening.tag, connection);
  ++live_;
  setups_.add(connection);
  counts_.bytes_in += opening.bytes.size();
  feed(connection, opening.bytes);
}

void StoreService::on_events(StoreConnection& connection, std::uint32_t events) {
  if ((events & EPOLLOUT) != 0 && !flush(connection)) return;
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && connection.reads()) {
    read(connection);
  } else if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
    drop(connection);
  }
}

// ---- reading and answering

void StoreService::read(StoreConnection& connection) {
  const EventSet::Tag me = connection.tag();
  // A full buffer is read again at once, but not for ever: the event comes again.
  for (int i = 0; i < 4; ++i) {
    const ssize_t n = ::recv(connection.fd(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) drop(connection);
      return;
    }
    if (n == 0) {
      at_end(connection);
      return;
    }
    const auto size = static_cast<std::size_t>(n);
    counts_.bytes_in += size;
    feed(connection, std::string_view(scratch_.data(), size));
    if (size < scratch_.size() || !events_.watches(me) || !connection.reads()) return;
  }
}

// Gives bytes (none: after a pause) to the session and sends what it answers.
void StoreService::feed(StoreConnection& connection, std::string_view bytes) {
  const EventSet::Tag me = connection.tag();
  const std::size_t size = bytes.size();
  StoreSession& session = connection.session();
  StoreSession::Verdict verdict = StoreSession::Verdict::ok;
  do {
    // Answers go out from one buffer for all; only what the kernel does not take moves to the connection.
    const bool had_backlog = connection.unsent() > 0;
    std::string& out = had_backlog ? connection.kept() : reply_;
    verdict = session.feed(bytes, connection.unsent(), out, wakes_);
    if (setups_.has(connection) && session.validated()) StoreDeadlines::remove(connection);
    const std::string_view tail = session.take_tail();
    if (had_backlog) {
      connection.kept().append(tail);
    } else if (!reply_.empty()) {
      const bool alive = connection.send(reply_, tail, counts_.bytes_out);
      reply_.clear();
      if (reply_.capacity() > kReadChunk) std::string().swap(reply_);
      if (!alive) {
        drop(connection);
        deliver_wakes();
        return;
      }
    }
    if (verdict != StoreSession::Verdict::ok) {
      refuse(connection, verdict, size);
      deliver_wakes();
      return;
    }
    bytes = {};
    // Paused by the bound on unread answers, but the kernel took them all: no event would come.
  } while (session.paused() && connection.unsent() == 0);
  account(connection);
  if (events_.watches(me)) {
    look_at_half(connection);
    connection.update_interest(events_, options_.max_unread_bytes);
  }
  deliver_wakes();
}

// The kernel takes bytes again. False: the connection is closed.
bool StoreService::flush(StoreConnection& connection) {
  const EventSet::Tag me = connection.tag();
  if (!connection.send_kept(counts_.bytes_out) || (connection.unsent() == 0 && connection.finished())) {
    drop(connection);
    return false;
  }
  if (connection.session().paused() && connection.unsent() <= options_.max_unread_bytes / 2) {
    feed(connection, {});
  } else {
    account(connection);
    if (events_.watches(me)) connection.update_interest(events_, options_.max_unread_bytes);
  }
  return events_.watches(me);
}

void StoreService::deliver_wakes() {
  if (wakes_.empty()) return;
  // Taken aside: a send that fails closes a connection, never wakes another one, but let nothing depend on that.
  delivering_.swap(wakes_);
  const char byte = kStoreStopWaiting;
  for (const ClientId id : delivering_) {
    StoreConnection* connection = id < connections_.size() ? connections_[id].get() : nullptr;
    if (connection == nullptr) continue;
    if (!connection->send(std::string_view(&byte, 1), {}, counts_.bytes_out)) {
      drop(*connection);
    } else if (connection->unsent() > 0) {
      connection->update_interest(events_, options_.max_unread_bytes);
    }
  }
  delivering_.clear();
  if (delivering_.capacity() > 65536) Store::Wakes().swap(delivering_);
}

void StoreService::account(StoreConnection& connection) {
  const std::size_t now = connection.buffered();
  if (now == connection.accounted) return;
  const bool grew = now > connection.accounted;
  buffered_ += now - connection.accounted;
  connection.accounted = now;
  if (!grew) return;
  // Whoever keeps the most pays: else one that parks half requests would have all others cut.
  while (buffered_ > options_.max_buffered_bytes) {
    StoreConnection* most = nullptr;
    for (const auto& other : connections_) {
      if (other && (most == nullptr || other->accounted > most->accounted)) most = other.get();
    }
    refuse_for_memory(*most, "half requests and unread answers of all clients are over max_buffered_bytes");
  }
}

void StoreService::look_at_half(StoreConnection& connection) {
  const std::size_t half = connection.session().half_bytes();
  const bool timed = halves_.has(connection);
  if (half == 0) {
    if (timed) StoreDeadlines::remove(connection);
    return;
  }
  if (!connection.session().validated() || connection.finished()) return;
  if (timed && half >= connection.half_mark && half < connection.half_mark + kHalfProgress) return;
  StoreDeadlines::remove(connection);
  connection.half_mark = half;
  halves_.add(connection);
}

// ---- ending

// The client has closed, or shut down, its side.
void StoreService::at_end(StoreConnection& connection) {
  if (connection.unsent() == 0) {
    drop(connection);
    return;
  }
  store_.forget(connection.client());
  connection.finish();
  StoreDeadlines::remove(connection);
  ends_.add(connection);
  connection.update_interest(events_, options_.max_unread_bytes);
}

void StoreService::refuse(StoreConnection& connection, StoreSession::Verdict verdict, std::size_t size) {
  const std::string_view why = connection.session().why();
  switch (verdict) {
    case StoreSession::Verdict::ok:
      return;
    case StoreSession::Verdict::garbage:
      ++counts_.refused_garbage;
      garbage_log_.note([&](std::uint64_t n) {
        log_warning("store: closed a connection that is no c10d client's: {} ({} bytes) peer={} so_far={}", why, size,
                    peer_text(connection.fd()), n);
      });
      break;
    case StoreSession::Verdict::too_old:
      ++counts_.refused_too_old;
      too_old_log_.note([&](std::uint64_t n) {
        log_warning("store: closed {} peer={} so_far={}", why, peer_text(connection.fd()), n);
      });
      break;
    case StoreSession::Verdict::malformed:
      ++counts_.refused_malformed;
      malformed_log_.note([&](std::uint64_t n) {
        log_warning("store: closed a client that sent what cannot be answered: {} peer={} so_far={}", why,
                    peer_text(connection.fd()), n);
      });
      break;
    case StoreSession::Verdict::memory:
      refuse_for_memory(connection, why);
      return;
  }
  drop(connection);
}

void StoreService::refuse_for_memory(StoreConnection& connection, std::string_view why) {
  ++counts_.refused_memory;
  memory_log_.note([&](std::uint64_t n) {
    log_warning("store: closed a client: {} stored_bytes={} buffered_bytes={} peer={} so_far={}", why, store_.bytes(),
                buffered_, peer_text(connection.fd()), n);
  });
  drop(connection);
}

void StoreService::refuse_for_number() {
  ++counts_.refused_descriptors;
  number_log_.note([&](std::uint64_t n) {
    log_warning(
        "store: no room for another connection: out of max_connections; those that are connected are served on "
        "clients={} refused={}",
        live_, n);
  });
}

// Closes and forgets; `connection` is gone afterwards.
void StoreService::drop(StoreConnection& connection) {
  store_.forget(connection.client());
  buffered_ -= connection.accounted;
  StoreDeadlines::remove(connection);
  --live_;
  const ClientId id = connection.client();
  events_.forget(connection.tag());
  connections_[id].reset();
}

void StoreService::too_late(StoreConnection& connection, std::string_view what, std::chrono::milliseconds limit) {
  ++counts_.setup_timeouts;
  late_log_.note([&](std::uint64_t n) {
    log_info("store: closed a connection that {} within {} ms peer={} so_far={}", what, limit.count(),
             peer_text(connection.fd()), n);
  });
  drop(connection);
}

// ---- the whole

void StoreService::clear() {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i]) drop(*connections_[i]);
  }
  store_.clear();
  ::malloc_trim(0);
}

void StoreService::close() {
  if (closed_) return;
  closed_ = true;
  setups_.close();
  halves_.close();
  ends_.close();
  events_.on_turn_end(nullptr);
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i]) drop(*connections_[i]);
  }
  store_.clear();
}

StoreStats StoreService::stats() const {
  StoreStats stats = counts_;
  stats.connections = live_ + acceptor_.pending();
  stats.waiting = store_.waiting();
  stats.keys = store_.num_keys();
  stats.queue_items = store_.queue_items();
  stats.stored_bytes = store_.bytes();
  stats.buffered_bytes = buffered_;
  stats.accepted = acceptor_.counts().accepted;
  stats.refused_descriptors += acceptor_.counts().refused;
  stats.setup_timeouts += acceptor_.counts().silent;
  return stats;
}

}  // namespace ddprun::rendezvous
