#include "worker/comm/handshake.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

namespace ddprun::comm {

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (unsigned char c : bytes) text += fmt::format("{:02x}", c);
  return text;
}

Result<std::string> random_token() {
  char bytes[kTokenSize / 2];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return Error::from_errno(errno, "getrandom");
  }
  return to_hex(std::string_view(bytes, sizeof bytes));
}

Result<bool> wait_readable(int fd, TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    pollfd p{fd, POLLIN, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
    if (n > 0) return true;
    if (n == 0 && left <= 1'000'000) return false;
    if (n < 0 && errno != EINTR) return Error::from_errno(errno, "poll in a handshake");
  }
}

Result<bool> wait_readable(int fd, TimePoint deadline, KeyValue& store) {
  for (;;) {
    const TimePoint until = std::min(deadline, store.next_word());
    auto ready = wait_readable(fd, until);
    if (!ready || *ready || until == deadline) return ready;
    store.still_waiting();
  }
}

}  // namespace ddprun::comm
