#include "worker/comm/shm_bootstrap.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <thread>

#include "common/log.h"
#include "common/wire.h"
#include "worker/comm/handshake.h"
#include "worker/comm/roll_call.h"

namespace ddprun::comm {
namespace {

constexpr std::uint64_t kMagic = 0x316d687372706464ULL;  // "ddprshm1"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMostMembers = 250;  // SCM_RIGHTS carries 253 descriptors

Result<void> send_message(int fd, std::string_view bytes, std::span<const int> descriptors) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(sizeof(int) * descriptors.size()));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  if (::sendmsg(fd, &message, MSG_NOSIGNAL) < 0) return Error::from_errno(errno, "shared-memory handshake");
  return {};
}

struct Message {
  std::string bytes;
  std::vector<UniqueFd> descriptors;
};

Result<Message> receive_message(int fd, std::size_t most) {
  Message result;
  result.bytes.resize(most);
  iovec part{result.bytes.data(), result.bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(sizeof(int) * (kMostMembers + 1)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (n < 0) return Error::from_errno(errno, "shared-memory handshake");
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(h) + i * sizeof(int), sizeof value);
      result.descriptors.emplace_back(value);
    }
  }
  if (n == 0) return Error(Errc::peer_closed, "shared-memory handshake: the other side closed the connection");
  result.bytes.resize(static_cast<std::size_t>(n));
  return result;
}

std::optional<std::string> from_hex(std::string_view text) {
  std::string bytes;
  if (text.size() % 2 != 0) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  return bytes;
}

Result<UniqueFd> own_pidfd() {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!fd) return Error::from_errno(errno, "pidfd_open of this process");
  return fd;
}

// Who is not there, by rank: those of a host follow each other.
std::string absent_of(const ShmSetup& setup) {
  std::vector<int> absent;
  for (std::size_t i = 0; i < setup.members.size(); ++i) {
    if (!setup.members[i].pidfd) absent.push_back(setup.members[0].rank + static_cast<int>(i));
  }
  return rank_list(absent);
}

Result<ShmSetup> serve(KeyValue& store, const ShmPlace& place, TimePoint deadline) {
  ShmSetup setup;
  setup.members.resize(static_cast<std::size_t>(place.local_size));
  setup.memory.reset(::memfd_create("ddprun-gradients", MFD_CLOEXEC));
  if (!setup.memory) return Error::from_errno(errno, "cannot make shared memory (memfd_create)");
  auto pidfd = own_pidfd();
  if (!pidfd) return pidfd.error();
  setup.members[0] = ShmMember{place.rank, ::getpid(), std::move(pidfd).value()};

  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!listener) return Error::from_errno(errno, "cannot make the shared-memory socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // No path: the kernel chooses an abstract name.
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      ::listen(listener.get(), place.local_size) != 0) {
    return Error::from_errno(errno, "cannot listen on the shared-memory socket");
  }
  socklen_t length = sizeof address;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Error::from_errno(errno, "cannot learn the name of the shared-memory socket");
  }
  const std::string name(address.sun_path, length - offsetof(sockaddr_un, sun_path));
  auto token = random_token();
  if (!token) return token.error();
  Result<void> published = store.set(place.key, to_hex(name) + " " + *token);
  if (!published) return published.error().with_context("shared memory: cannot publish its address");

  std::vector<UniqueFd> connections(setup.members.size());
  int missing = place.local_size - 1;
  while (missing > 0) {
    auto ready = wait_readable(listener.get(), deadline, store);
    if (!ready) return ready.error();
    if (!*ready) {
      return Error(Errc::timed_out, fmt::format("shared memory: {} of {} ranks of this host came; missing: {}",
                                                place.local_size - missing, place.local_size, absent_of(setup)));
    }
    UniqueFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection) {
      if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED) continue;
      return Error::from_errno(errno, "shared memory: cannot accept a connection");  // no descriptor left, for one
    }
    ucred peer{};
    socklen_t peer_size = sizeof peer;
    if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) != 0 ||
        (peer.uid != ::geteuid() && peer.uid != 0)) {
      log_warning("shared memory: refused a connection of user {}", peer.uid);
      continue;
    }
    // A stranger that connects and says nothing must not hold the others up for long.
    const TimePoint patience = std::min(deadline, SteadyClock::now() + std::chrono::seconds(5));
    auto said = wait_readable(connection.get(), patience);
    if (!said || !*said) continue;
    auto hello = receive_message(connection.get(), 256);
    if (!hello) continue;
    WireReader reader(hello->bytes);
    const std::uint64_t magic = reader.u64();
    const std::uint32_t version = reader.u32(), local = reader.u32(), rank = reader.u32(), pid = reader.u32(),
                        size = reader.u32();
    const std::string_view their_token = reader.raw(kTokenSize);
    if (!reader.finished() || magic != kMagic || version != kVersion || their_token != *token ||
        hello->descriptors.size() != 1) {
      log_warning("shared memory: refused a handshake that is not of this attempt (pid {})", peer.pid);
      continue;
    }
    if (size != static_cast<std::uint32_t>(place.local_size) || local == 0 || local >= size ||
        setup.members[local].pidfd) {
      return Error(Errc::invalid_argument,
                   fmt::format("shared memory: rank {} says it is local rank {} of {}, but {}; check LOCAL_RANK and "
                               "LOCAL_WORLD_SIZE of all ranks",
                               rank, local, size,
                               size != static_cast<std::uint32_t>(place.local_size)
                                   ? fmt::format("rank {} is local rank 0 of {}", place.rank, place.local_size)
                                   : std::string("that place is taken")));
    }
    setup.members[local] = ShmMember{static_cast<int>(rank), static_cast<pid_t>(pid), std::move(hello->descriptors[0])};
    connections[local] = std::move(connection);
    --missing;
  }
  (void)store.erase(place.key);  // best effort: a rerun under the same store must not find a dead socket

  WireWriter welcome;
  welcome.u64(kMagic);
  welcome.u32(kVersion);
  welcome.u32(static_cast<std::uint32_t>(place.local_size));
  std::vector<int> descriptors = {setup.memory.get()};
  for (const ShmMember& member : setup.members) {
    welcome.u32(static_cast<std::uint32_t>(member.rank));
    welcome.u32(static_cast<std::uint32_t>(member.pid));
    descriptors.push_back(member.pidfd.get());
  }
  for (std::size_t i = 1; i < connections.size(); ++i) {
    Result<void> sent = send_message(connections[i].get(), welcome.bytes(), descriptors);
    if (!sent) return sent.error().with_context(fmt::format("rank {}", setup.members[i].rank));
  }
  return setup;
}

// One try. refused: the address in the store is an old one, read it again.
Result<ShmSetup> join_once(std::string_view published, const ShmPlace& place, TimePoint deadline) {
  const std::size_t space = published.find(' ');
  const auto name = from_hex(published.substr(0, space));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (space == std::string_view::npos || !name || name->size() > sizeof address.sun_path ||
      published.size() - space - 1 != kTokenSize) {
    return Error(Errc::malformed, fmt::format("store key {} holds no address of shared memory", place.key));
  }
  std::memcpy(address.sun_path, name->data(), name->size());
  // Not blocking: connect() waits without a deadline where too many have connected and nobody accepts them.
  UniqueFd connection(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection) return Error::from_errno(errno, "cannot make the shared-memory socket");
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name->size());
  if (::connect(connection.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return Error(Errc::refused, errno == EAGAIN ? "it accepts no connections"
                                                : std::string("nobody listens there: ") + std::strerror(errno));
  }
  auto pidfd = own_pidfd();
  if (!pidfd) return pidfd.error();
  WireWriter hello;
  hello.u64(kMagic);
  hello.u32(kVersion);
  hello.u32(static_cast<std::uint32_t>(place.local_rank));
  hello.u32(static_cast<std::uint32_t>(place.rank));
  hello.u32(static_cast<std::uint32_t>(::getpid()));
  hello.u32(static_cast<std::uint32_t>(place.local_size));
  hello.raw(published.substr(space + 1));
  const int own[] = {pidfd->get()};
  Result<void> sent = send_message(connection.get(), hello.bytes(), own);
  if (!sent) return Error(Errc::refused, sent.error().message());
  auto ready = wait_readable(connection.get(), deadline);
  if (!ready) return ready.error();
  if (!*ready) {
    return Error(Errc::timed_out, fmt::format("shared memory: rank {} waits for the other {} ranks of this host",
                                              place.rank, place.local_size - 1));
  }
  auto welcome = receive_message(connection.get(), 64 + 8 * kMostMembers);
  if (!welcome) return Error(Errc::refused, welcome.error().message());
  WireReader reader(welcome->bytes);
  const std::uint64_t magic = reader.u64();
  const std::uint32_t version = reader.u32(), size = reader.u32();
  if (magic != kMagic || version != kVersion || size != static_cast<std::uint32_t>(place.local_size) ||
      welcome->descriptors.size() != size + 1) {
    return Error(Errc::malformed, "shared memory: local rank 0 sent no answer of this version of ddprun");
  }
  ShmSetup setup;
  setup.local_rank = place.local_rank;
  setup.memory = std::move(welcome->descriptors[0]);
  for (std::uint32_t i = 0; i < size; ++i) {
    ShmMember member;
    member.rank = static_cast<int>(reader.u32());
    member.pid = static_cast<pid_t>(reader.u32());
    member.pidfd = std::move(welcome->descriptors[i + 1]);
    setup.members.push_back(std::move(member));
  }
  if (!reader.finished()) return Error(Errc::malformed, "shared memory: short answer of local rank 0");
  return setup;
}

}  // namespace

Result<ShmSetup> connect_shm(KeyValue& store, const ShmPlace& place, TimePoint deadline) {
  if (place.local_size < 1 || static_cast<std::size_t>(place.local_size) > kMostMembers || place.local_rank < 0 ||
      place.local_rank >= place.local_size) {
    return Error(Errc::invalid_argument,
                 fmt::format("shared memory: local rank {} of {} ranks; 1 to {} ranks of a host "
                             "can share memory",
                             place.local_rank, place.local_size, kMostMembers));
  }
  if (place.local_rank == 0) return serve(store, place, deadline);
  auto pause = std::chrono::milliseconds(10);
  while (true) {
    auto published = store.get(place.key, deadline);
    if (!published) {
      return published.error().with_context(
          fmt::format("shared memory: rank {} waits for local rank 0 of its host", place.rank));
    }
    auto joined = join_once(*published, place, deadline);
    if (joined || joined.error().code() != Errc::refused) return joined;
    if (SteadyClock::now() + pause >= deadline) {
      return Error(Errc::timed_out, fmt::format("shared memory: rank {} cannot reach local rank 0 of its host: {}",
                                                place.rank, joined.error().message()));
    }
    std::this_thread::sleep_for(pause);  // until local rank 0 of this attempt has overwritten the old address
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  }
}

}  // namespace ddprun::comm
