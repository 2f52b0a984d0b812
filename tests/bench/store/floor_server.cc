// What the kernel alone costs: epoll, recv, send of a constant answer, and nothing else. No store: it does not even
// look at more than the opcode. store_bench shows how near to this a server is. Prints "port N", serves until stdin
// ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "common/store_protocol.h"

int main() {
  using ddprun::StoreOp;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const int listener = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, 65535) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::perror("floor_server");
    return 1;
  }
  std::printf("port %u\n", static_cast<unsigned>(ntohs(address.sin6_port)));
  std::fflush(stdout);
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  const auto watch = [poller](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  };
  watch(listener);
  watch(0);
  static char buffer[1 << 18];
  static const std::string answer(1 << 17, 'v');
  for (;;) {
    epoll_event events[128];
    const int n = ::epoll_wait(poller, events, 128, -1);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == 0) return 0;
      if (fd == listener) {
        watch(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        continue;
      }
      const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
      if (got <= 0) {
        ::close(fd);
        continue;
      }
      std::size_t size = 0;
      switch (static_cast<StoreOp>(buffer[0])) {
        case StoreOp::validate:
          size = got > 5 ? 4 : 0;
          break;
        case StoreOp::add:
          size = 8;
          break;
        case StoreOp::wait:
          size = 1;
          break;
        case StoreOp::get:
          size = 8 + 64;
          break;
        default:
          size = 4;
      }
      if (size > 0) ::send(fd, answer.data(), size, MSG_NOSIGNAL);
    }
  }
}
