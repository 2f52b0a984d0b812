#pragma once

#include <sys/types.h>

#include <string_view>

#include "common/unique_fd.h"

namespace ddprun {

// A way to write to a descriptor that others hold too (standard output, standard error) without waiting for its reader
// and without O_NONBLOCK on it, which would be every other holder's: a pipe or a terminal is opened once more, a socket
// takes MSG_DONTWAIT, a file or a device is written to directly.
class SharedOut {
 public:
  enum class Kind {
    direct,     // takes everything at once, as far as the kernel knows
    socket,     //
    reopened,   // a pipe or terminal, by a descriptor of ours alone
    may_block,  // a pipe or terminal that cannot be opened again (another user's, no /proc): only after POLLOUT, at
                // most PIPE_BUF; and even then another holder may have been faster
  };

  // `fd` is not owned and may be closed or replaced at any time; the object stands for what it was when it was made.
  explicit SharedOut(int fd);

  Kind kind() const { return kind_; }
  bool is_terminal() const { return terminal_; }
  bool is_open() const { return open_; }
  int poll_fd() const { return own_ ? own_.get() : fd_; }
  // As write(2): the number of bytes or -1 and errno. SIGPIPE is the caller's to keep away.
  ssize_t put(std::string_view bytes) const;

 private:
  int fd_;
  Kind kind_ = Kind::direct;
  bool open_ = false, terminal_ = false;
  UniqueFd own_;
};

}  // namespace ddprun
