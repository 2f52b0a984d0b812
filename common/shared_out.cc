#include "common/shared_out.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace ddprun {

SharedOut::SharedOut(int fd) : fd_(fd) {
  struct stat status = {};
  open_ = ::fstat(fd, &status) == 0;
  if (!open_) return;
  terminal_ = S_ISCHR(status.st_mode) && ::isatty(fd) == 1;
  if (S_ISSOCK(status.st_mode)) {
    kind_ = Kind::socket;
  } else if (S_ISFIFO(status.st_mode) || terminal_) {
    const std::string self = "/proc/self/fd/" + std::to_string(fd);
    own_.reset(::open(self.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    kind_ = own_ ? Kind::reopened : Kind::may_block;
  }
}

ssize_t SharedOut::put(std::string_view bytes) const {
  if (kind_ == Kind::socket) return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return ::write(poll_fd(), bytes.data(), bytes.size());
}

}  // namespace ddprun
