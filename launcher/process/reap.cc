#include "launcher/process/reap.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {

using std::chrono::milliseconds;

bool reap_within(pid_t child, milliseconds limit) {
  const TimePoint end = SteadyClock::now() + limit;
  UniqueFd handle;
  for (;;) {
    const pid_t reaped = ::waitpid(child, nullptr, WNOHANG);
    if (reaped != 0 && !(reaped < 0 && errno == EINTR)) return true;
    const auto left = std::chrono::ceil<milliseconds>(end - SteadyClock::now());
    if (left <= milliseconds(0)) return false;
    if (!handle) handle = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
    pollfd ended{handle.get(), POLLIN, 0};
    // Without pidfd_open (an old kernel, a sandbox, no descriptor left) it is looked after every millisecond.
    if (!handle || ::poll(&ended, 1, static_cast<int>(left.count())) < 0) {
      std::this_thread::sleep_for(std::min(left, milliseconds(1)));
    }
  }
}

}  // namespace ddprun::launcher
