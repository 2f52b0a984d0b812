#include "common/tcp.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "common/lookup.h"

namespace ddprun {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

// A failed try and whether the next one may go better.
struct Attempt {
  Error error;
  bool retry;
};

int remaining_ms(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

// Waits until `fd` is ready for `events` (or broken, which the next call on it will tell). False: the deadline passed.
bool wait_ready(int fd, short events, TimePoint deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int limit = remaining_ms(deadline);
    const int n = ::poll(&entry, 1, limit);
    if (n > 0) return true;
    if (n == 0 && remaining_ms(deadline) == 0) return false;
    if (n < 0 && errno != EINTR) return true;
  }
}

Address v4_address(std::uint32_t host_order, std::uint16_t port) {
  Address address;
  auto* in = reinterpret_cast<sockaddr_in*>(&address.storage);
  in->sin_family = AF_INET;
  in->sin_port = htons(port);
  in->sin_addr.s_addr = htonl(host_order);
  address.size = sizeof(sockaddr_in);
  return address;
}

Address v6_address(const in6_addr& host, std::uint16_t port) {
  Address address;
  auto* in = reinterpret_cast<sockaddr_in6*>(&address.storage);
  in->sin6_family = AF_INET6;
  in->sin6_port = htons(port);
  in->sin6_addr = host;
  address.size = sizeof(sockaddr_in6);
  return address;
}

int get_addresses(const std::string& host, std::uint16_t port, int flags, std::vector<Address>& out) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (rc != 0) return rc;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    out.push_back(address);
  }
  ::freeaddrinfo(list);
  return 0;
}

std::optional<Address> numeric_address(std::string_view host, std::uint16_t port) {
  std::vector<Address> found;
  if (host.empty() || get_addresses(std::string(host), port, AI_NUMERICHOST, found) != 0 || found.empty()) {
    return std::nullopt;
  }
  return found.front();
}

struct Resolved {
  std::vector<Address> addresses;
  std::optional<Attempt> failure;
};

Resolved resolve(const Endpoint& endpoint, TimePoint deadline) {
  Resolved result;
  const auto found = Lookup(endpoint.host).wait(deadline);
  if (!found) {
    result.failure = Attempt{found.error(), found.error().code() != Errc::system};
    return result;
  }
  for (const std::string& address : *found) {
    if (auto numeric = numeric_address(address, endpoint.port)) result.addresses.push_back(*numeric);
  }
  return result;
}

Endpoint to_endpoint(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN + 1 + 16] = {};
  Endpoint endpoint;
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    endpoint.port = ntohs(in.sin_port);
  } else if (storage.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    endpoint.port = ntohs(in.sin6_port);
    if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
      ::inet_ntop(AF_INET, &in.sin6_addr.s6_addr[12], text, sizeof(text));
    } else {
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), sizeof(sockaddr_in6), text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST);  // keeps the zone of a link-local address
    }
  }
  endpoint.host = text;
  return endpoint;
}

void set_nodelay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// One address, one try.
Result<UniqueFd> connect_address(const Address& address, TimePoint deadline, int& error_number) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    error_number = errno;
    return Error::from_errno(errno, "socket");
  }
  int rc = ::connect(fd.get(), address.get(), address.size);
  if (rc != 0 && (errno == EINPROGRESS || errno == EINTR)) {
    if (!wait_ready(fd.get(), POLLOUT, deadline)) {
      error_number = ETIMEDOUT;
      return Error(Errc::timed_out, "no answer (host down, or a firewall drops packets)");
    }
    socklen_t size = sizeof(rc);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &rc, &size);
    errno = rc;
  }
  if (rc != 0) {
    error_number = errno;
    return Error::from_errno(errno, "connect");
  }
  // On loopback, a connect to a port of the ephemeral range that nobody listens on can meet itself.
  const auto local = local_endpoint(fd.get());
  if (local && local == remote_endpoint(fd.get())) {
    error_number = ECONNREFUSED;
    const linger reset_now{1, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset_now, sizeof(reset_now));
    return Error::from_errno(ECONNREFUSED, "connect");
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK);
  set_nodelay(fd.get());
  return fd;
}

bool worth_retrying(int error_number) {
  switch (error_number) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case EADDRNOTAVAIL:  // no free local port just now
    case EAGAIN:
    case ENOBUFS:
    case EPIPE:
      return true;
    default:
      return false;
  }
}

Result<UniqueFd> attempt(const Endpoint& endpoint, TimePoint deadline, bool& retry) {
  Resolved resolved = resolve(endpoint, deadline);
  if (resolved.failure) {
    retry = resolved.failure->retry;
    return std::move(resolved.failure->error);
  }
  std::optional<Error> last;
  retry = false;
  for (std::size_t i = 0; i < resolved.addresses.size(); ++i) {
    // The first of several addresses must not eat the time of the others.
    const TimePoint now = SteadyClock::now();
    const auto share = (deadline - now) / static_cast<int>(resolved.addresses.size() - i);
    int error_number = 0;
    auto fd = connect_address(resolved.addresses[i], now + share, error_number);
    if (fd) return fd;
    // "Address family not supported" of the IPv6 address says less than "refused" of the IPv4 one.
    const bool useful = worth_retrying(error_number);
    if (!last || useful) last = std::move(fd).error();
    retry = retry || useful;
  }
  return std::move(*last);
}

std::string plain_reason(const Error& error) {
  constexpr std::string_view kPrefix = "connect: ";
  const std::string& message = error.message();
  return message.starts_with(kPrefix) ? message.substr(kPrefix.size()) : message;
}

std::string seconds_text(std::chrono::nanoseconds span) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", std::chrono::duration<double>(span).count());
  return text;
}

Result<UniqueFd> bind_listen(const Address& address, bool dual_stack, int& error_number) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) {
    error_number = errno;
    return Error::from_errno(errno, "socket");
  }
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family() == AF_INET6) {
    const int v6only = dual_stack ? 0 : 1;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof(v6only));
  }
  set_nodelay(fd.get());  // accepted sockets inherit it
  if (::bind(fd.get(), address.get(), address.size) != 0) {
    error_number = errno;
    return Error::from_errno(errno, "bind");
  }
  // The kernel cuts the number down to net.core.somaxconn.
  if (::listen(fd.get(), 1 << 20) != 0) {
    error_number = errno;
    return Error::from_errno(errno, "listen");
  }
  return fd;
}

void set_port(Address& address, std::uint16_t port) {
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
  }
}

Result<Listener> listen_on(const ListenOptions& options, std::uint16_t port, int& error_number) {
  Address address;
  std::string shown;
  if (!options.address.empty()) {
    auto numeric = numeric_address(options.address, port);
    if (!numeric) {
      error_number = EINVAL;
      return Error(Errc::invalid_argument, "cannot listen on '" + options.address + "': not a numeric address");
    }
    address = *numeric;
    shown = Endpoint{options.address, port}.to_string();
  } else if (options.scope == ListenScope::loopback) {
    address = v4_address(INADDR_LOOPBACK, port);
    shown = "127.0.0.1:" + std::to_string(port);
  } else {
    address = v6_address(in6addr_any, port);
    shown = "port " + std::to_string(port);
  }
  set_port(address, port);
  const bool any = options.address.empty() && options.scope == ListenScope::any;
  const bool wildcard_address = options.address == "::";
  auto fd = bind_listen(address, any || wildcard_address, error_number);
  if (!fd && any && error_number != EADDRINUSE && error_number != EACCES) {
    address = v4_address(INADDR_ANY, port);  // IPv6 is off on this host
    fd = bind_listen(address, false, error_number);
  }
  if (!fd) {
    if (error_number == EADDRINUSE) {
      const auto holder = port_holder(port);
      return Error(Errc::refused,
                   "cannot listen on " + shown + ": the port is in use" + (holder ? " by " + *holder : std::string()));
    }
    if (error_number == EADDRNOTAVAIL) {
      return Error(Errc::invalid_argument, "cannot listen on " + shown + ": this host does not have that address");
    }
    return std::move(fd).error().with_context("cannot listen on " + shown);
  }
  Listener listener;
  listener.fd = std::move(*fd);
  listener.port = local_endpoint(listener.fd.get()).value_or(Endpoint{"", port}).port;
  return listener;
}

}  // namespace

Result<Listener> tcp_listen(const ListenOptions& options) {
  int error_number = 0;
  if (options.port != 0 || options.last_port == 0) return listen_on(options, options.port, error_number);
  if (options.first_port == 0 || options.first_port > options.last_port) {
    return Error(Errc::invalid_argument, "port range " + std::to_string(options.first_port) + "-" +
                                             std::to_string(options.last_port) + " is empty");
  }
  std::vector<std::uint16_t> ports;
  for (unsigned port = options.first_port; port <= options.last_port; ++port) {
    ports.push_back(static_cast<std::uint16_t>(port));
  }
  // Random order: several launchers that start at once on one host should not race for the same port.
  std::shuffle(ports.begin(), ports.end(), std::mt19937(std::random_device{}()));
  for (const std::uint16_t port : ports) {
    auto listener = listen_on(options, port, error_number);
    if (listener || error_number != EADDRINUSE) return listener;
  }
  return Error(Errc::refused, "cannot listen: all " + std::to_string(ports.size()) + " ports from " +
                                  std::to_string(options.first_port) + " to " + std::to_string(options.last_port) +
                                  " are in use");
}

std::optional<std::string> port_holder(std::uint16_t port) {
  std::vector<std::string> links;  // "socket:[inode]" of every listener on the port
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      const auto colon = local.rfind(':');
      if (state != "0A" || colon == std::string::npos) continue;
      if (std::strtoul(local.c_str() + colon + 1, nullptr, 16) == port) links.push_back("socket:[" + inode + "]");
    }
  }
  if (links.empty()) return std::nullopt;
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(::opendir("/proc"), ::closedir);
  while (const dirent* process = processes ? ::readdir(processes.get()) : nullptr) {
    const std::string pid = process->d_name;
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string folder = "/proc/" + pid + "/fd";
    const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(::opendir(folder.c_str()), ::closedir);
    while (const dirent* entry = descriptors ? ::readdir(descriptors.get()) : nullptr) {
      char target[64];
      const ssize_t n = ::readlink((folder + "/" + entry->d_name).c_str(), target, sizeof(target));
      if (n <= 0) continue;
      if (std::find(links.begin(), links.end(), std::string(target, static_cast<std::size_t>(n))) == links.end())
        continue;
      std::ifstream comm("/proc/" + pid + "/comm");
      std::string name;
      std::getline(comm, name);
      return "pid " + pid + " (" + name + ")";
    }
  }
  return std::nullopt;
}

Result<UniqueFd> tcp_connect_once(const Endpoint& endpoint, TimePoint deadline) {
  bool retry = false;
  auto fd = attempt(endpoint, deadline, retry);
  if (!fd) {
    return Error(fd.error().code(), "cannot connect to " + endpoint.to_string() + ": " + plain_reason(fd.error()));
  }
  return fd;
}

Result<UniqueFd> tcp_connect(const Endpoint& endpoint, TimePoint deadline,
                             const std::function<void(const Error&)>& on_retry) {
  const TimePoint start = SteadyClock::now();
  auto pause = std::chrono::milliseconds(20);
  int tries = 0;
  for (;;) {
    bool retry = false;
    ++tries;
    auto fd = attempt(endpoint, deadline, retry);
    if (fd) return fd;
    const std::string reason = plain_reason(fd.error());
    if (!retry) return Error(fd.error().code(), "cannot connect to " + endpoint.to_string() + ": " + reason);
    const auto left = deadline - SteadyClock::now();
    if (left <= pause) {
      return Error(Errc::timed_out, "cannot connect to " + endpoint.to_string() + " within " +
                                        seconds_text(deadline - start) + " (" + std::to_string(tries) +
                                        (tries == 1 ? " try): " : " tries): ") + reason);
    }
    if (on_retry) on_retry(fd.error());
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(1000));
  }
}

Result<void> write_all(int fd, std::string_view bytes, TimePoint deadline) {
  const std::size_t size = bytes.size();
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Error::from_errno(errno, "send");
    if (!wait_ready(fd, POLLOUT, deadline)) {
      return Error(Errc::timed_out, "send: only " + std::to_string(size - bytes.size()) + " of " +
                                        std::to_string(size) + " bytes were taken before the deadline");
    }
  }
  return {};
}

Result<void> read_exact(int fd, void* buffer, std::size_t size, TimePoint deadline) {
  auto* out = static_cast<char*>(buffer);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::recv(fd, out + done, size - done, MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      continue;
    }
    if (n == 0) {
      return Error(Errc::peer_closed, "receive: the peer closed the connection after " + std::to_string(done) + " of " +
                                          std::to_string(size) + " bytes");
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Error::from_errno(errno, "receive");
    if (!wait_ready(fd, POLLIN, deadline)) {
      return Error(Errc::timed_out, "receive: " + std::to_string(done) + " of " + std::to_string(size) +
                                        " bytes came before the deadline");
    }
  }
  return {};
}

std::optional<std::string> local_address_towards(const Endpoint& peer) {
  const Endpoint target{peer.host, peer.port == 0 ? std::uint16_t{9} : peer.port};
  const Resolved resolved = resolve(target, SteadyClock::now() + std::chrono::seconds(5));
  for (const Address& address : resolved.addresses) {
    const UniqueFd fd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd || ::connect(fd.get(), address.get(), address.size) != 0) continue;
    if (const auto local = local_endpoint(fd.get())) return local->host;
  }
  return std::nullopt;
}

std::optional<Endpoint> local_endpoint(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return std::nullopt;
  return to_endpoint(storage);
}

std::optional<Endpoint> remote_endpoint(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return std::nullopt;
  return to_endpoint(storage);
}

}  // namespace ddprun
