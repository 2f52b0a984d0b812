#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>

#include "launcher/output/output_hub.h"

// The two ways to take a worker's output.
namespace ddprun::launcher {

Result<PipePair> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "pipe for a worker's output");
  PipePair pair{UniqueFd(ends[0]), UniqueFd(ends[1])};
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);  // of the read end only: it is an open file of its own
  // Fewer switches between a loud worker and us. Refused above the user's limit: then it stays as it is.
  ::fcntl(ends[1], F_SETPIPE_SZ, 256 * 1024);
  return pair;
}

Result<PipePair> make_pty(int terminal_fd) {
  PipePair pair;
  pair.ours.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  char name[128];
  if (!pair.ours || ::grantpt(pair.ours.get()) != 0 || ::unlockpt(pair.ours.get()) != 0 ||
      ::ptsname_r(pair.ours.get(), name, sizeof name) != 0) {
    return Error::from_errno(errno, "pseudo terminal for a worker's output");
  }
  pair.theirs.reset(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!pair.theirs) return Error::from_errno(errno, std::string("open ") + name);
  termios mode = {};
  if (::tcgetattr(pair.theirs.get(), &mode) == 0) {
    mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // bytes unchanged: our own terminal does its "\n" -> "\r\n" itself
    mode.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | ISIG);
    ::tcsetattr(pair.theirs.get(), TCSANOW, &mode);
  }
  winsize size = {};
  if (::ioctl(terminal_fd, TIOCGWINSZ, &size) == 0) ::ioctl(pair.ours.get(), TIOCSWINSZ, &size);
  ::fcntl(pair.ours.get(), F_SETFL, O_NONBLOCK);
  return pair;
}

std::vector<std::string> last_lines(const std::string& bytes, std::size_t count, bool cut_at_front) {
  std::vector<std::string> lines;
  std::size_t end = bytes.size();
  if (end > 0 && bytes[end - 1] == '\n') --end;
  while (lines.size() < count) {
    const std::size_t newline = end == 0 ? std::string::npos : bytes.rfind('\n', end - 1);
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    if (begin == 0 && cut_at_front && !lines.empty()) break;  // the front part of this line is missing
    std::string line = bytes.substr(begin, end - begin);
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (const std::size_t cr = line.rfind('\r'); cr != std::string::npos) line.erase(0, cr + 1);
    if (begin != 0 || !line.empty()) lines.insert(lines.begin(), std::move(line));
    if (newline == std::string::npos) break;
    end = newline;
  }
  return lines;
}

}  // namespace ddprun::launcher
