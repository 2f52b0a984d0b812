#include "rendezvous/sd_notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "common/log.h"
#include "common/unique_fd.h"

namespace ddprun::rendezvous {

void sd_notify(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");  // systemd's protocol: a datagram to this socket
  if (path == nullptr || path[0] == '\0') return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) {
    log_warning("NOTIFY_SOCKET is too long: systemd is not told that we are {}", state);
    return;
  }
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // abstract
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  if (!socket || ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
                          reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    log_warning("systemd cannot be told that we are {}: {}", state, std::strerror(errno));
  }
}

}  // namespace ddprun::rendezvous
