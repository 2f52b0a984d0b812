#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "common/log.h"
#include "common/tcp.h"
#include "common/wire.h"
#include "worker/comm/handshake.h"
#include "worker/comm/tcp_ring.h"

namespace ddprun::comm {
namespace {

constexpr std::uint64_t kMagic = 0x31676e7270646464ULL;
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kHelloSize = 8 + 4 + kTokenSize + 4 + 4;
constexpr auto kStrangerPatience = std::chrono::seconds(5);

// Between processes of one host nothing is on the way: a small buffer keeps what lies in it in the cache (measured: a
// fifth less processor time for 25 MiB). Other ways need what the kernel finds out by itself, up to tcp_wmem.
void keep_in_cache(int fd) {
  const auto here = local_endpoint(fd), there = remote_endpoint(fd);
  if (!here || !there || here->host != there->host) return;
  const int size_bytes = 256 * 1024;
  (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size_bytes, sizeof size_bytes);
}

}  // namespace

Result<std::unique_ptr<TcpRing>> TcpRing::connect(KeyValue& store, const RingPlace& place, TimePoint deadline) {
  std::unique_ptr<TcpRing> ring(new TcpRing(place));
  const int size = ring->size();
  ring->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ring->wake_) return Error::from_errno(errno, "eventfd");
  if (size == 1) return ring;

  ListenOptions listen;
  listen.address = place.address;
  auto listener = tcp_listen(listen);
  if (!listener) return listener.error().with_context(fmt::format("rank {} cannot listen for its ring", ring->rank()));
  auto token = random_token();
  if (!token) return token.error();
  const auto key_of = [&place](int index) { return fmt::format("{}/{}", place.key, index); };
  Result<void> published =
      store.set(key_of(place.index), Endpoint{place.address, listener->port}.to_string() + " " + *token);
  if (!published) return published.error().with_context("cannot publish this rank's address");

  // To the next: the kernel takes connections before the other side accepts them, so that nobody waits for a cycle.
  const std::size_t total = static_cast<std::size_t>(std::max(place.connections, 1)) + 1;
  const int next = (place.index + 1) % size;
  std::vector<UniqueFd> out;
  std::string reason = "it has not published its address";
  auto pause = std::chrono::milliseconds(10);
  while (out.empty()) {
    auto value = store.get(key_of(next), deadline);
    if (!value) {
      return value.error().with_context(
          fmt::format("rank {} waits for the address of rank {}", ring->rank(), ring->next_.rank));
    }
    const std::size_t space = value->find(' ');
    auto endpoint = Endpoint::parse(value->substr(0, space), 0);
    if (space == std::string::npos || value->size() - space - 1 != kTokenSize || !endpoint) {
      return Error(Errc::malformed, fmt::format("store key {} holds no address", key_of(next)));
    }
    for (std::size_t i = 0; i < total; ++i) {
      auto fd = tcp_connect_once(*endpoint, deadline);
      if (!fd) {
        reason = fd.error().message();
        break;
      }
      WireWriter hello;
      hello.u64(kMagic);
      hello.u32(kVersion);
      hello.raw(value->substr(space + 1));
      hello.u32(static_cast<std::uint32_t>(place.index));
      hello.u32(static_cast<std::uint32_t>(i));
      Result<void> sent = write_all(fd->get(), hello.bytes(), deadline);
      if (!sent) {
        reason = sent.error().message();
        break;
      }
      out.push_back(std::move(fd).value());
    }
    if (out.size() == total) break;
    out.clear();
    if (SteadyClock::now() + pause >= deadline) {
      return Error(Errc::timed_out,
                   fmt::format("rank {} cannot connect to rank {} at {}: {}; is a firewall between them?", ring->rank(),
                               ring->next_.rank, endpoint->to_string(), reason));
    }
    std::this_thread::sleep_for(pause);  // an address of an earlier attempt is soon overwritten
    pause = std::min(pause * 2, std::chrono::milliseconds(500));
  }

  std::vector<UniqueFd> in(total);
  for (std::size_t have = 0; have < total;) {
    auto somebody = wait_readable(listener->fd.get(), deadline, store);
    if (!somebody) return somebody.error();
    if (!*somebody) {
      return Error(
          Errc::timed_out,
          fmt::format("rank {} waits for rank {} to connect to {}; missing ranks: {}", ring->rank(),
                      ring->previous_.rank, Endpoint{place.address, listener->port}.to_string(), ring->previous_.rank));
    }
    UniqueFd fd(::accept4(listener->fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED) continue;
      return Error::from_errno(errno, "cannot accept a connection of the ring");  // no descriptor left, for one
    }
    std::string hello(kHelloSize, '\0');
    const TimePoint patience = std::min(deadline, SteadyClock::now() + kStrangerPatience);
    if (!read_exact(fd.get(), hello.data(), hello.size(), patience)) continue;
    WireReader reader(hello);
    const std::uint64_t magic = reader.u64();
    const std::uint32_t version = reader.u32();
    const std::string_view their_token = reader.raw(kTokenSize);
    const std::uint32_t index = reader.u32(), number = reader.u32();
    const auto previous = static_cast<std::uint32_t>((place.index + size - 1) % size);
    if (magic != kMagic || version != kVersion || their_token != *token || index != previous || number >= total ||
        in[number]) {
      log_warning("refused a connection that is not of this ring (rank {})", ring->rank());
      continue;
    }
    in[number] = std::move(fd);
    ++have;
  }
  for (const UniqueFd& fd : in) {
    Result<void> sent = write_all(fd.get(), std::string_view("\1", 1), deadline);
    if (!sent) return sent.error().with_context(fmt::format("rank {}", ring->previous_.rank));
  }
  for (const UniqueFd& fd : out) {
    char yes = 0;
    Result<void> got = read_exact(fd.get(), &yes, 1, deadline);
    if (!got || yes != 1) {
      return Error(got ? Errc::malformed : got.error().code(),
                   fmt::format("rank {} did not take the connection of rank {}: {}", ring->next_.rank, ring->rank(),
                               got ? "strange answer" : got.error().message()));
    }
  }
  (void)store.erase(key_of(place.index));  // best effort: a rerun under the same store must not find an old address

  for (const auto* fds : {&in, &out}) {
    for (const UniqueFd& fd : *fds) keep_in_cache(fd.get());
  }
  const auto adopt = [](Neighbour& neighbour, std::vector<UniqueFd> fds) {
    neighbour.control = std::move(fds[0]);
    for (std::size_t i = 1; i < fds.size(); ++i) neighbour.data.push_back(std::move(fds[i]));
  };
  adopt(ring->next_, std::move(out));
  adopt(ring->previous_, std::move(in));
  return ring;
}

}  // namespace ddprun::comm
