#include "common/standard_fds.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/exit_code.h"

namespace ddprun {

void open_standard_fds() {
  // open() gives the lowest free number. Not close-on-exec: children inherit them as standard descriptors.
  int fd = 0;
  do fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

void print_output(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

int exit_code_after_output(const char* program, int code) {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost || code != exit_code::kOk) return code;
  // The write that failed may have been long ago.
  const char* why = errno != 0 ? std::strerror(errno) : "standard output failed (is the disk full?)";
  std::fprintf(stderr, "%s: cannot write all of the output: %s\n", program, why);
  return exit_code::kFailure;
}

}  // namespace ddprun
