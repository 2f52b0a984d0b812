#include "rendezvous/store/store_server.h"

#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/store_session.h"

// Why not one Asio operation per socket: a store's request is 20 bytes and a hash look-up, so the event loop is the
// cost. All store sockets are in one epoll set of ours (level-triggered: an event costs no system call to take again);
// Asio watches that set as one descriptor and calls us on its thread.
namespace ddprun::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::size_t kReadChunk = 256 * 1024;
constexpr int kEvents = 128;
// A turn of our loop before other work of the context gets its own.
constexpr std::chrono::microseconds kTurn{1000};
constexpr std::size_t kTrimFrom = std::size_t{64} << 20;
constexpr std::size_t kListeners = 4;
constexpr std::size_t kAccepts = 8192;  // connections taken in a row
constexpr std::size_t kUnknown = 256;   // beyond max_connections, until their first byte says whose they are
constexpr std::size_t kStorm = 32;      // when more came at once: look for others after as many events
constexpr std::size_t kKeepOut = 4096;  // reply buffer that an idle connection may keep
constexpr std::chrono::seconds kLogInterval{10};
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::uint64_t kListenerTag = ~std::uint64_t{0} - 0xffff;  // + index into listeners

void set_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

// A second listening socket on the port of `first`, with an accept queue of its own (each holds somaxconn, 4096 by
// default): a job of 8000 ranks overflows one, and each client that is turned away tries again after a whole second.
// The kernel spreads connections over all by their addresses. SO_REUSEPORT is on for the moment of binding only, so
// that a second daemon finds the port taken as ever (a program of the same user that itself asks for SO_REUSEPORT does
// not: tried).
UniqueFd listen_beside(int first) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(first, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  UniqueFd fd(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {};
  if (address.ss_family == AF_INET6) {
    int v6_only = 0;
    socklen_t size = sizeof v6_only;
    ::getsockopt(first, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, &size);
    set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, v6_only);
  }
  set_option(first, SOL_SOCKET, SO_REUSEPORT, 1);
  set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  const bool listens =
      ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 && ::listen(fd.get(), 65535) == 0;
  set_option(first, SOL_SOCKET, SO_REUSEPORT, 0);
  set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 0);
  return listens ? std::move(fd) : UniqueFd();
}

std::string peer_text(int fd) {
  const auto peer = remote_endpoint(fd);
  return peer ? peer->to_string() : std::string("an unknown peer");
}

}  // namespace

struct StoreServer::Impl : std::enable_shared_from_this<Impl> {
  struct Connection {
    Connection(int socket, Store& store, ClientId client, const StoreSessionLimits& limits,
               std::array<std::uint64_t, kStoreOpCount>& counts)
        : fd(socket), id(client), session(store, client, limits, counts) {}

    UniqueFd fd;
    ClientId id;
    std::uint32_t generation = 0;
    StoreSession session;
    std::string out;  // answers that the kernel did not take yet, from out_offset on
    std::size_t out_offset = 0;
    std::size_t accounted = 0;  // of buffered_bytes
    std::uint32_t interest = EPOLLIN;
    bool fresh = true;      // no byte has come
    bool finished = false;  // the client will send no more; only `out` is left to deliver
    // List of those with a time limit: not validated, or finished and not drained. Oldest first.
    Connection* previous = nullptr;
    Connection* next = nullptr;
    bool limited = false;
    TimePoint limit;

    std::size_t unsent() const { return out.size() - out_offset; }
  };

  Impl(asio::io_context& c, Listener l, StoreServerOptions o)
      : context(c), options(o), listener(std::move(l)), events_source(c), limit_timer(c), accept_timer(c) {
    limits.decoder.max_list_bytes = options.max_request_bytes;
    limits.max_store_bytes = options.max_store_bytes;
    limits.max_unread_bytes = options.max_unread_bytes;
  }

  void start() {
    listeners.push_back(std::move(listener.fd));
    for (std::size_t i = 1; i < kListeners; ++i) {
      if (UniqueFd beside = listen_beside(listeners[0].get())) listeners.push_back(std::move(beside));
    }
    for (const UniqueFd& fd : listeners) {
      // Inherited by every accepted socket, so that a connection storm costs no further system calls.
      set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      set_option(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
      set_option(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, 60);
      set_option(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, 15);
      set_option(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, 4);
      ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
    }
    spare.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
    CHECK(epoll.get() >= 0, "epoll_create1 failed: no descriptor is left at start");
    watch_listeners();
    boost::system::error_code ignored;
    events_source.assign(epoll.get(), ignored);
    scratch.resize(kReadChunk);
    arm();
  }

  void watch_listeners() {
    if (held || !accepting) return;
    for (std::size_t i = 0; i < listeners.size(); ++i) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = kListenerTag + i;
      ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listeners[i].get(), &event);
    }
  }

  void arm() {
    if (closed) return;
    events_source.async_wait(asio::posix::stream_descriptor::wait_read,
                             [self = shared_from_this()](const boost::system::error_code& ec) {
                               if (!ec && !self->closed) self->on_events();
                             });
  }

  // One turn of our event loop. Ends when nothing more comes, or after kTurn for the context's other work.
  // (Tried and left out: to look again for some microseconds before going back to the context, and to wait there with
  // a time limit. On a busy machine the first takes the CPU from the clients, in a virtual one the second costs more
  // than it saves.)
  void on_events() {
    epoll_event events[kEvents];
    const TimePoint start = SteadyClock::now();
    for (;;) {
      const int n = ::epoll_wait(epoll.get(), events, kEvents, 0);
      if (n <= 0) break;
      handle(events, n);
      if (closed) return;
      if (n == 1 || SteadyClock::now() - start > kTurn) break;
    }
    trim();
    arm();
  }

  // After a burst of keys the allocator keeps what it got from the kernel.
  void trim() {
    peak_bytes = std::max(peak_bytes, store.bytes());
    if (peak_bytes < kTrimFrom || store.bytes() > peak_bytes / 4) return;
    peak_bytes = store.bytes();
    ::malloc_trim(0);
  }

  void handle(const epoll_event* events, int n) {
    // New connections first: when the kernel's queue of them overflows, their clients try again after a whole second.
    std::size_t taken = 0;
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u64 >= kListenerTag) taken += accept_all(events[i].data.u64 - kListenerTag);
    }
    for (int i = 0; i < n && !closed; ++i) {
      if (events[i].data.u64 >= kListenerTag) continue;
      on_event(events[i]);
      if (taken > kStorm && static_cast<std::size_t>(i) % kStorm == kStorm - 1) {
        for (std::size_t l = 0; l < listeners.size(); ++l) accept_all(l);
      }
    }
  }

  Connection* find(std::uint64_t tag) {
    const auto id = static_cast<std::size_t>(tag & 0xffffffffu);
    if (id >= connections.size() || !connections[id]) return nullptr;
    return connections[id]->generation == static_cast<std::uint32_t>(tag >> 32) ? connections[id].get() : nullptr;
  }

  void on_event(const epoll_event& event) {
    Connection* connection = find(event.data.u64);
    if (connection == nullptr) return;  // closed by an earlier event of this batch
    if ((event.events & EPOLLOUT) != 0 && !flush_backlog(*connection)) return;
    if ((event.events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && (connection->interest & EPOLLIN) != 0) {
      read(*connection);
    } else if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) {
      drop(*connection);
    }
  }

  // ---- accepting

  std::size_t accept_all(std::size_t which) {
    const int from = listeners[which].get();
    const TimePoint now = SteadyClock::now();
    for (std::size_t taken = 0;; ++taken) {
      if (taken == kAccepts) return taken;
      const int fd = ::accept4(from, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        if (held && has_ended(fd)) {
          ::close(fd);
          continue;
        }
        if (options.max_connections > 0 && live >= options.max_connections + (foreign ? kUnknown : 0)) {
          ::close(fd);
          note_refusal("max_connections");
          continue;
        }
        add(fd, now);
        continue;
      }
      if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return taken;
      if (errno == EMFILE || errno == ENFILE) {
        // The spare descriptor lets us take the connection and close it: its client learns at once, and the listener
        // does not stay readable for ever.
        spare.reset();
        const int victim = ::accept4(from, nullptr, nullptr, SOCK_CLOEXEC);
        const bool none_waits = victim < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        if (victim >= 0) {
          ::close(victim);
          note_refusal("descriptors (ulimit -n)");
        }
        spare.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (none_waits) return taken;  // accept4 looks for a descriptor before it looks for a connection
        if (victim >= 0 && spare) continue;
      }
      pause_accepting();
      return taken;
    }
  }

  void note_refusal(std::string_view what) {
    ++counts.refused_descriptors;
    refusal_log(descriptor_log, [&](std::uint64_t n) {
      log_warning(
          "store: no room for another connection: out of {}; those that are connected are served on clients={} "
          "refused={}",
          what, live, n);
    });
  }

  void pause_accepting() {
    for (const UniqueFd& fd : listeners) ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
    accept_timer.expires_after(kAcceptPause);
    accept_timer.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
      if (!ec && !self->closed) self->watch_listeners();
    });
  }

  void add(int fd, TimePoint now) {
    ClientId id = 0;
    if (free_ids.empty()) {
      id = static_cast<ClientId>(connections.size());
      connections.emplace_back();
    } else {
      id = free_ids.back();
      free_ids.pop_back();
    }
    auto connection = std::make_unique<Connection>(fd, store, id, limits, counts.requests);
    connection->generation = ++generation;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = tag(*connection);
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      free_ids.push_back(id);
      return;
    }
    limit_time(*connection, now);
    ++live;
    ++unknown;
    ++counts.accepted;
    connections[id] = std::move(connection);
  }

  static std::uint64_t tag(const Connection& connection) {
    return (static_cast<std::uint64_t>(connection.generation) << 32) | connection.id;
  }

  // ---- reading and answering

  void read(Connection& connection) {
    const std::uint64_t me = tag(connection);
    // A full buffer is read again at once, but not for ever: the event comes again.
    for (int i = 0; i < 4; ++i) {
      const ssize_t n = ::recv(connection.fd.get(), scratch.data(), scratch.size(), MSG_DONTWAIT);
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
      if (connection.fresh && is_foreign(connection, scratch[0])) {
        hand_over(connection, size);
        return;
      }
      if (connection.fresh) {
        if (options.max_connections > 0 && live - unknown >= options.max_connections) {
          drop(connection);
          note_refusal("max_connections");
          return;
        }
        connection.fresh = false;
        --unknown;
      }
      counts.bytes_in += size;
      take(connection, std::string_view(scratch.data(), size));
      if (size < scratch.size() || find(me) == nullptr || (connection.interest & EPOLLIN) == 0) return;
    }
  }

  bool is_foreign(const Connection&, char first) const { return foreign && first == foreign_byte; }

  void hand_over(Connection& connection, std::size_t size) {
    std::string bytes(scratch.data(), size);
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, connection.fd.get(), nullptr);
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    ::getsockname(connection.fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
    tcp::socket socket(context);
    boost::system::error_code ec;
    socket.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), connection.fd.get(), ec);
    if (ec) {
      drop(connection);
      return;
    }
    [[maybe_unused]] const int owned_by_socket = connection.fd.release();
    ++counts.handed_over;
    drop(connection);
    foreign(std::move(socket), std::move(bytes));
  }

  // Gives bytes (none: after a pause) to the session and sends what it answers.
  void take(Connection& connection, std::string_view bytes) {
    const std::uint64_t me = tag(connection);
    StoreSession::Verdict verdict = StoreSession::Verdict::ok;
    do {
      // Answers go out from one buffer for all; only what the kernel does not take moves to the connection.
      const bool had_backlog = connection.unsent() > 0;
      std::string& out = had_backlog ? connection.out : reply;
      verdict = connection.session.feed(bytes, connection.unsent(), out, wakes);
      if (connection.limited && !connection.finished && connection.session.validated()) unlimit(connection);
      const std::string_view tail = connection.session.take_tail();
      if (had_backlog) {
        connection.out.append(tail);
      } else if (!reply.empty()) {
        const bool alive = send(connection, reply, tail);
        reply.clear();
        if (reply.capacity() > kReadChunk) std::string().swap(reply);
        if (!alive) {
          deliver_wakes();
          return;
        }
      }
      if (verdict != StoreSession::Verdict::ok) {
        refuse(connection, verdict, bytes);
        deliver_wakes();
        return;
      }
      bytes = {};
      // Paused by the bound on unread answers, but the kernel took them all: no event would come.
    } while (connection.session.paused() && connection.unsent() == 0);
    account(connection);
    if (find(me) != nullptr) update_interest(connection);
    deliver_wakes();
  }

  // Sends `head` and `tail` on a connection without backlog; the rest becomes its backlog. False: it is closed.
  bool send(Connection& connection, std::string_view head, std::string_view tail = {}) {
    while (!head.empty()) {
      ssize_t n = 0;
      if (tail.empty()) {
        n = ::send(connection.fd.get(), head.data(), head.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      } else {
        iovec parts[2] = {{const_cast<char*>(head.data()), head.size()}, {const_cast<char*>(tail.data()), tail.size()}};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = 2;
        n = ::sendmsg(connection.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      }
      if (n > 0) {
        counts.bytes_out += static_cast<std::uint64_t>(n);
        const std::size_t of_head = std::min(head.size(), static_cast<std::size_t>(n));
        head.remove_prefix(of_head);
        tail.remove_prefix(static_cast<std::size_t>(n) - of_head);
        if (head.empty()) {
          head = tail;
          tail = {};
        }
        continue;
      }
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        connection.out.reserve(head.size() + tail.size());
        connection.out.assign(head);
        connection.out.append(tail);
        connection.out_offset = 0;
        update_interest(connection);
        return true;
      }
      drop(connection);
      return false;
    }
    return true;
  }

  // The kernel takes bytes again. False: the connection is closed.
  bool flush_backlog(Connection& connection) {
    while (connection.unsent() > 0) {
      const ssize_t n = ::send(connection.fd.get(), connection.out.data() + connection.out_offset, connection.unsent(),
                               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) {
        counts.bytes_out += static_cast<std::uint64_t>(n);
        connection.out_offset += static_cast<std::size_t>(n);
        continue;
      }
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      drop(connection);
      return false;
    }
    if (connection.unsent() == 0) {
      connection.out_offset = 0;
      connection.out.clear();
      if (connection.out.capacity() > kKeepOut) std::string().swap(connection.out);
      if (connection.finished) {
        drop(connection);
        return false;
      }
    } else if (connection.out_offset > connection.out.size() / 2) {
      connection.out.erase(0, connection.out_offset);
      connection.out_offset = 0;
    }
    const std::uint64_t me = tag(connection);
    if (connection.session.paused() && connection.unsent() <= options.max_unread_bytes / 2) {
      take(connection, {});
    } else {
      account(connection);
      if (find(me) != nullptr) update_interest(connection);
    }
    return find(me) != nullptr;
  }

  void deliver_wakes() {
    if (wakes.empty()) return;
    // Taken aside: a send that fails closes a connection, never wakes another one, but let nothing depend on that.
    delivering.swap(wakes);
    const char byte = kStoreStopWaiting;
    for (const ClientId id : delivering) {
      Connection* connection = id < connections.size() ? connections[id].get() : nullptr;
      if (connection == nullptr) continue;
      if (connection->unsent() > 0) {
        connection->out.push_back(byte);
      } else {
        send(*connection, std::string_view(&byte, 1));
      }
    }
    delivering.clear();
    if (delivering.capacity() > 65536) Store::Wakes().swap(delivering);
  }

  void update_interest(Connection& connection) {
    std::uint32_t wanted = connection.unsent() > 0 ? EPOLLOUT : 0u;
    if (!connection.finished && !connection.session.paused() && connection.unsent() <= options.max_unread_bytes) {
      wanted |= EPOLLIN;
    }
    if (wanted == connection.interest) return;
    connection.interest = wanted;
    epoll_event event{};
    event.events = wanted;
    event.data.u64 = tag(connection);
    ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, connection.fd.get(), &event);
  }

  void account(Connection& connection) {
    const std::size_t now = connection.session.buffered() + connection.out.capacity();
    if (now == connection.accounted) return;
    const bool grew = now > connection.accounted;
    buffered += now - connection.accounted;
    connection.accounted = now;
    if (grew && buffered > options.max_buffered_bytes) {
      refuse_for_memory(connection, "half requests and unread answers of all clients are over max_buffered_bytes");
    }
  }

  // ---- ending

  // The client has closed, or shut down, its side.
  void at_end(Connection& connection) {
    if (connection.unsent() == 0) {
      drop(connection);
      return;
    }
    store.forget(connection.id);
    connection.finished = true;
    if (!connection.limited) limit_time(connection, SteadyClock::now());
    update_interest(connection);
  }

  void refuse(Connection& connection, StoreSession::Verdict verdict, std::string_view bytes) {
    const std::string_view why = connection.session.why();
    switch (verdict) {
      case StoreSession::Verdict::ok:
        return;
      case StoreSession::Verdict::garbage:
        ++counts.refused_garbage;
        refusal_log(garbage_log, [&](std::uint64_t n) {
          log_warning("store: closed a connection that is no c10d client's: {} ({} bytes) peer={} so_far={}", why,
                      bytes.size(), peer_text(connection.fd.get()), n);
        });
        break;
      case StoreSession::Verdict::too_old:
        ++counts.refused_too_old;
        refusal_log(too_old_log, [&](std::uint64_t n) {
          log_warning("store: closed {} peer={} so_far={}", why, peer_text(connection.fd.get()), n);
        });
        break;
      case StoreSession::Verdict::malformed:
        ++counts.refused_malformed;
        refusal_log(malformed_log, [&](std::uint64_t n) {
          log_warning("store: closed a client that sent what cannot be answered: {} peer={} so_far={}", why,
                      peer_text(connection.fd.get()), n);
        });
        break;
      case StoreSession::Verdict::memory:
        refuse_for_memory(connection, why);
        return;
    }
    drop(connection);
  }

  void refuse_for_memory(Connection& connection, std::string_view why) {
    ++counts.refused_memory;
    refusal_log(memory_log, [&](std::uint64_t n) {
      log_warning("store: closed a client: {} stored_bytes={} buffered_bytes={} peer={} so_far={}", why, store.bytes(),
                  buffered, peer_text(connection.fd.get()), n);
    });
    drop(connection);
  }

  // One line for the first of a kind, then at most one in ten seconds; each says how many there were.
  struct RefusalLog {
    std::uint64_t count = 0;
    TimePoint last{};
  };
  template <typename Write>
  void refusal_log(RefusalLog& log, Write write) {
    const TimePoint now = SteadyClock::now();
    ++log.count;
    if (log.count > 1 && now - log.last < kLogInterval) return;
    log.last = now;
    write(log.count);
  }

  // Closes and forgets; `connection` is gone afterwards.
  void drop(Connection& connection) {
    store.forget(connection.id);
    buffered -= connection.accounted;
    if (connection.limited) unlimit(connection);
    if (connection.fresh) --unknown;
    const ClientId id = connection.id;
    connections[id].reset();
    free_ids.push_back(id);
    --live;
  }

  // ---- time limits

  void limit_time(Connection& connection, TimePoint now) {
    connection.limited = true;
    connection.limit = now + options.setup_timeout;
    connection.previous = last_limited;
    connection.next = nullptr;
    (last_limited ? last_limited->next : first_limited) = &connection;
    last_limited = &connection;
    if (!limit_timer_runs) run_limit_timer();
  }

  void unlimit(Connection& connection) {
    (connection.previous ? connection.previous->next : first_limited) = connection.next;
    (connection.next ? connection.next->previous : last_limited) = connection.previous;
    connection.limited = false;
  }

  void run_limit_timer() {
    limit_timer_runs = true;
    limit_timer.expires_at(first_limited->limit);
    limit_timer.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
      if (!ec && !self->closed) self->on_limit();
    });
  }

  void on_limit() {
    limit_timer_runs = false;
    const TimePoint now = SteadyClock::now();
    while (first_limited != nullptr && first_limited->limit <= now) {
      ++counts.setup_timeouts;
      refusal_log(silent_log, [&](std::uint64_t n) {
        log_info("store: closed a connection that {} within {} ms peer={} so_far={}",
                 first_limited->finished ? "has ended and did not take its last answers" : "sent no VALIDATE",
                 options.setup_timeout.count(), peer_text(first_limited->fd.get()), n);
      });
      drop(*first_limited);
    }
    if (first_limited != nullptr) run_limit_timer();
  }

  // ---- whole server

  void clear() {
    if (closed) return;
    // Those that wait to be accepted are part of the past too, if they already spoke.
    for (std::size_t i = 0; i < listeners.size(); ++i) accept_all(i);
    for (std::size_t i = 0; i < connections.size(); ++i) {
      Connection* connection = connections[i].get();
      if (connection == nullptr) continue;
      if (connection->fresh) {
        char first = 0;
        const ssize_t n = ::recv(connection->fd.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
        const bool silent = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        if (silent || (n == 1 && is_foreign(*connection, first))) continue;
      }
      drop(*connection);
    }
    store.clear();
    ::malloc_trim(0);
  }

  void hold() {
    if (closed || held) return;
    held = true;
    for (const UniqueFd& fd : listeners) ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
    for (auto& connection : connections) {
      if (connection) drop(*connection);
    }
    store.clear();
    ::malloc_trim(0);
  }

  // Whoever comes now is refused by the kernel: nobody listens any more.
  void stop_accepting() {
    if (closed || !accepting) return;
    accepting = false;
    for (UniqueFd& fd : listeners) {
      ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
      fd.reset();
    }
    listeners.clear();
  }

  void serve() {
    if (closed || !held) return;
    for (std::size_t i = 0; i < listeners.size(); ++i) {
      while (accept_all(i) == kAccepts) {
      }
    }
    held = false;
    watch_listeners();
  }

  static bool has_ended(int fd) {
    tcp_info info{};
    socklen_t size = sizeof info;
    return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state != TCP_ESTABLISHED;
  }

  void close() {
    if (closed) return;
    closed = true;
    boost::system::error_code ignored;
    limit_timer.cancel();
    accept_timer.cancel();
    events_source.cancel(ignored);
    [[maybe_unused]] const int ours = events_source.release();
    for (auto& connection : connections) {
      if (connection) drop(*connection);
    }
    epoll.reset();
    listeners.clear();
    spare.reset();
    store.clear();
  }

  asio::io_context& context;
  const StoreServerOptions options;
  StoreSessionLimits limits;
  Listener listener;
  std::vector<UniqueFd> listeners;  // all on the one port
  bool accepting = true;
  bool held = false;  // between hold() and serve()
  UniqueFd epoll;
  UniqueFd spare;
  asio::posix::stream_descriptor events_source;
  asio::steady_timer limit_timer;
  asio::steady_timer accept_timer;

  Store store;
  std::vector<std::unique_ptr<Connection>> connections;  // by ClientId
  std::vector<ClientId> free_ids;
  std::uint32_t generation = 0;
  std::size_t live = 0;
  std::size_t unknown = 0;  // of them: no byte has come, so it may be an agent, which is no client of the store
  std::size_t buffered = 0;
  std::size_t peak_bytes = 0;  // stored, since the last trim()
  Connection* first_limited = nullptr;
  Connection* last_limited = nullptr;
  bool limit_timer_runs = false;
  bool closed = false;

  std::vector<char> scratch;  // what recv() fills; one for all connections
  std::string reply;
  Store::Wakes wakes;
  Store::Wakes delivering;

  Foreign foreign;
  char foreign_byte = 0;
  StoreStats counts;  // the counting half of it
  RefusalLog garbage_log, too_old_log, malformed_log, memory_log, descriptor_log, silent_log;
};

StoreServer::StoreServer(asio::io_context& context, Listener listener, StoreServerOptions options)
    : impl_(std::make_shared<Impl>(context, std::move(listener), options)) {
  impl_->start();
}

StoreServer::~StoreServer() { close(); }

void StoreServer::on_foreign(char first_byte, Foreign handler) {
  impl_->foreign_byte = first_byte;
  impl_->foreign = std::move(handler);
}

void StoreServer::clear() { impl_->clear(); }
void StoreServer::stop_accepting() { impl_->stop_accepting(); }
void StoreServer::hold() { impl_->hold(); }
void StoreServer::serve() { impl_->serve(); }
void StoreServer::close() { impl_->close(); }
std::uint16_t StoreServer::port() const { return impl_->listener.port; }
std::size_t StoreServer::connections() const { return impl_->live; }

StoreStats StoreServer::stats() const {
  StoreStats stats = impl_->counts;
  stats.connections = impl_->live;
  stats.waiting = impl_->store.waiting();
  stats.keys = impl_->store.num_keys();
  stats.queue_items = impl_->store.queue_items();
  stats.stored_bytes = impl_->store.bytes();
  stats.buffered_bytes = impl_->buffered;
  return stats;
}

std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const auto old = static_cast<std::size_t>(limit.rlim_cur);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return old;
}

}  // namespace ddprun::rendezvous
