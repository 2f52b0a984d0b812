#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "common/types.h"
#include "common/unique_fd.h"

// Blocking TCP with deadlines, on plain descriptors, IPv4 and IPv6. Asio code adopts the descriptors.
// All sockets are close-on-exec and have TCP_NODELAY.
namespace ddprun {

enum class ListenScope {
  any,       // [::] dual stack, 0.0.0.0 where IPv6 is off
  loopback,  // 127.0.0.1
};

struct ListenOptions {
  ListenScope scope = ListenScope::any;
  std::string address;           // numeric; not empty = listen on this address only, scope is ignored
  std::uint16_t port = 0;        // 0 = the kernel chooses
  std::uint16_t first_port = 0;  // with last_port: try this range (random order) when port is 0
  std::uint16_t last_port = 0;
};

struct Listener {
  UniqueFd fd;
  std::uint16_t port = 0;
};

// Binds and listens (backlog: the host's somaxconn; SO_REUSEADDR so that a port is free again at once).
// Errors: refused when the port is taken (names the port and, where /proc tells, its holder), system otherwise.
Result<Listener> tcp_listen(const ListenOptions& options);

// "pid 123 (python3)" of the process that listens on `port`, where /proc tells.
std::optional<std::string> port_holder(std::uint16_t port);

// Connects to any of the addresses of `endpoint`; retries refused, reset, unreachable and not-yet-resolvable names with
// back-off (20 ms, doubling, at most 1 s) until `deadline`. `on_retry` (may be empty) hears each failed try.
// Errors: timed_out naming the endpoint and the last reason.
Result<UniqueFd> tcp_connect(const Endpoint& endpoint, TimePoint deadline,
                             const std::function<void(const Error&)>& on_retry = {});

// One try only. Errors: refused, not_found (name), timed_out, system.
Result<UniqueFd> tcp_connect_once(const Endpoint& endpoint, TimePoint deadline);

// Whole buffers on a non-blocking or blocking socket, with a deadline. Errors: timed_out, peer_closed, system.
Result<void> write_all(int fd, std::string_view bytes, TimePoint deadline);
Result<void> read_exact(int fd, void* buffer, std::size_t size, TimePoint deadline);

// Our own numeric address on the way to `peer` (no packet is sent), e.g. for MASTER_ADDR. nullopt: no route.
std::optional<std::string> local_address_towards(const Endpoint& peer);
// Numeric address of either end of a connected socket, without brackets or ::ffff: prefix.
std::optional<Endpoint> local_endpoint(int fd);
std::optional<Endpoint> remote_endpoint(int fd);

}  // namespace ddprun
