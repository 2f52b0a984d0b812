#include "rendezvous/net/listeners.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <utility>

namespace ddprun::rendezvous {

namespace {

constexpr std::size_t kListeners = 4;

void set_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

// SO_REUSEPORT is on for the moment of binding only, so that a second daemon finds the port taken as ever (a program of
// the same user that itself asks for SO_REUSEPORT does not: tried).
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

}  // namespace

std::vector<UniqueFd> listen_side_by_side(UniqueFd first) {
  std::vector<UniqueFd> all;
  all.push_back(std::move(first));
  for (std::size_t i = 1; i < kListeners; ++i) {
    if (UniqueFd beside = listen_beside(all[0].get())) all.push_back(std::move(beside));
  }
  for (const UniqueFd& fd : all) {
    // Inherited by every accepted socket, so that a connection storm costs no further system calls.
    set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, 15);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, 4);
    ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  }
  return all;
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
