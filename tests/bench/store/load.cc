#include "tests/bench/store/load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/store_protocol.h"

namespace ddprun::bench {
namespace {

constexpr int kLimitMs = 120000;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "store_bench: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

int try_connect(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("socket");
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

struct Client {
  int fd = -1;
  std::size_t left = 0;
  double sent = 0;
};

}  // namespace

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

long rss_kib(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("VmRSS:", 0) == 0) return std::atol(line.c_str() + 6);
  }
  return 0;
}

double cpu_s(int pid) {
  double total = 0;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream in(task.path() / "schedstat");
    double ns = 0;
    in >> ns;
    total += ns * 1e-9;
  }
  return total;
}

void send_all(int fd, const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n <= 0) die("send");
    done += static_cast<std::size_t>(n);
  }
}

void receive_all(int fd, std::size_t size) {
  static char sink[1 << 18];
  while (size > 0) {
    const ssize_t n = ::recv(fd, sink, std::min(size, sizeof sink), 0);
    if (n <= 0) die("recv");
    size -= static_cast<std::size_t>(n);
  }
}

int connect_store(std::uint16_t port) {
  const int fd = try_connect(port);
  if (fd < 0) die("connect");
  std::string hello;
  store_wire::validate(hello);
  send_all(fd, hello);
  hello.clear();
  store_wire::ping(hello, 1);
  send_all(fd, hello);
  receive_all(fd, 4);
  return fd;
}

Latency round_trips(std::uint16_t port, int server_pid, int clients, const std::string& request, std::size_t reply_size,
                    double seconds) {
  std::vector<double> times;
  times.reserve(1 << 20);
  double start = 0;
  double cpu = 0;
  double end = 0;
  double last = 0;
  const auto begin = [&] {
    cpu = cpu_s(server_pid);
    start = last = now_s();
    end = start + seconds;
  };
  if (clients == 1) {
    const int fd = connect_store(port);
    begin();
    while (last < end) {
      send_all(fd, request);
      receive_all(fd, reply_size);
      const double now = now_s();
      times.push_back(now - last);
      last = now;
    }
    ::close(fd);
  } else {
    const int poller = ::epoll_create1(EPOLL_CLOEXEC);
    std::vector<Client> all(static_cast<std::size_t>(clients));
    for (Client& client : all) {
      client.fd = connect_store(port);
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.ptr = &client;
      ::epoll_ctl(poller, EPOLL_CTL_ADD, client.fd, &event);
    }
    begin();
    for (Client& client : all) {
      client.left = reply_size;
      client.sent = now_s();
      send_all(client.fd, request);
    }
    static char sink[1 << 18];
    while (last < end) {
      epoll_event events[64];
      const int n = ::epoll_wait(poller, events, 64, 1000);
      if (n <= 0) die("no answer within a second");
      for (int i = 0; i < n; ++i) {
        Client& client = *static_cast<Client*>(events[i].data.ptr);
        const ssize_t got = ::recv(client.fd, sink, std::min(client.left, sizeof sink), MSG_DONTWAIT);
        if (got <= 0) die("recv");
        client.left -= static_cast<std::size_t>(got);
        if (client.left > 0) continue;
        last = now_s();
        times.push_back(last - client.sent);
        client.sent = last;
        client.left = reply_size;
        send_all(client.fd, request);
      }
    }
    for (const Client& client : all) ::close(client.fd);
    ::close(poller);
  }
  std::sort(times.begin(), times.end());
  Latency latency;
  latency.server_cpu_us = (cpu_s(server_pid) - cpu) / static_cast<double>(times.size()) * 1e6;
  latency.per_second = static_cast<double>(times.size()) / (last - start);
  latency.p50_us = times[times.size() / 2] * 1e6;
  latency.p99_us = times[times.size() * 99 / 100] * 1e6;
  return latency;
}

namespace {

struct Report {
  double first = 0;
  double last = 0;
  int lost = 0;
};

// One process of the storm. Waits on `gate` for a byte before each phase, reports on `out` after it.
void storm_process(std::uint16_t port, int clients, int world, const std::string& key, int gate, int out) {
  std::vector<int> fds(static_cast<std::size_t>(clients), -1);
  char go = 0;
  if (::read(gate, &go, 1) != 1) std::_Exit(1);
  std::string hello;
  store_wire::validate(hello);
  store_wire::ping(hello, 1);
  Report report;
  const auto await = [&report](int fd, std::size_t size) {
    char sink[16];
    while (size > 0) {
      pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, kLimitMs) <= 0) return false;
      const ssize_t n = ::recv(fd, sink, size, 0);
      if (n <= 0) return false;
      size -= static_cast<std::size_t>(n);
    }
    report.last = now_s();
    return true;
  };
  report.first = now_s();
  for (int& fd : fds) {
    fd = try_connect(port);
    if (fd >= 0) ::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL);
  }
  for (const int fd : fds) report.lost += fd >= 0 && await(fd, 4) ? 0 : 1;
  if (::write(out, &report, sizeof report) < 0 || ::read(gate, &go, 1) != 1) std::_Exit(1);
  std::string barrier;
  store_wire::barrier(barrier, key, world);
  report = Report();
  report.first = now_s();
  for (const int fd : fds) ::send(fd, barrier.data(), barrier.size(), MSG_NOSIGNAL);
  for (const int fd : fds) report.lost += await(fd, 1) ? 0 : 1;
  if (::write(out, &report, sizeof report) < 0 || ::read(gate, &go, 1) != 1) std::_Exit(1);
  std::_Exit(0);
}

}  // namespace

Storm storm(std::uint16_t port, int clients, int processes, const std::string& key) {
  int gate[2];
  int out[2];
  if (::pipe2(gate, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) die("pipe");
  std::vector<pid_t> children;
  for (int i = 0; i < processes; ++i) {
    const int share = clients / processes + (i < clients % processes ? 1 : 0);
    const pid_t pid = ::fork();
    if (pid < 0) die("fork");
    if (pid == 0) storm_process(port, share, clients, key, gate[0], out[1]);
    children.push_back(pid);
  }
  const std::string go(static_cast<std::size_t>(processes), 'x');
  Storm result;
  const auto phase = [&](double& seconds) {
    if (::write(gate[1], go.data(), go.size()) < 0) die("write");
    double first = 1e300;
    double last = 0;
    for (int i = 0; i < processes; ++i) {
      Report report;
      if (::read(out[0], &report, sizeof report) != static_cast<ssize_t>(sizeof report)) die("a client process failed");
      first = std::min(first, report.first);
      last = std::max(last, report.last);
      result.lost += report.lost;
    }
    seconds = last - first;
  };
  phase(result.connect_s);
  phase(result.barrier_s);
  if (::write(gate[1], go.data(), go.size()) < 0) die("write");
  for (const pid_t pid : children) ::waitpid(pid, nullptr, 0);
  for (const int fd : {gate[0], gate[1], out[0], out[1]}) ::close(fd);
  return result;
}

}  // namespace ddprun::bench
