#include "launcher/output/output_console.h"

#include <limits.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace ddprun::launcher {

Console::Console(int descriptor) : out(descriptor), mixer(out.is_terminal()), closed(!out.is_open()) {}

void Console::flush(TimePoint now) {
  while (takes() && waiting() > 0) {
    std::string_view bytes = std::string_view(queue).substr(written);
    if (out.kind() == SharedOut::Kind::may_block) {
      pollfd room{out.poll_fd(), POLLOUT, 0};
      if (::poll(&room, 1, 0) <= 0) break;
      bytes = bytes.substr(0, PIPE_BUF);
    }
    const ssize_t n = out.put(bytes);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      closed = true;  // EPIPE, EIO: nobody reads any more. The job goes on without its console.
      if (errno != EPIPE && errno != EIO) broken = errno;
      break;
    }
    written += static_cast<std::size_t>(n);
    last_progress = now;
  }
  if (!takes()) {
    lost_bytes += waiting();
    written = queue.size();
  }
  if (written == queue.size()) {
    queue.clear();
    written = 0;
    if (queue.capacity() > 4 * kBytes) queue.shrink_to_fit();
  } else if (written > kBytes) {
    queue.erase(0, written - 1);  // the last byte written stays: give_up() looks at it
    written = 1;
  }
}

std::uint64_t Console::give_up() {
  const std::uint64_t lost = waiting();
  torn = written > 0 && queue[written - 1] != '\n';
  queue.clear();
  written = 0;
  stuck = true;
  lost_bytes += lost;
  return lost;
}

std::uint64_t Console::resume() {
  stuck = false;
  if (std::exchange(torn, false)) queue += '\n';
  return std::exchange(lost_bytes, 0);
}

}  // namespace ddprun::launcher
