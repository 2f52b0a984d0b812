#include "common/standard_fds.h"

#include <fcntl.h>
#include <unistd.h>

namespace ddprun {

void open_standard_fds() {
  // open() gives the lowest free number. Not close-on-exec: children inherit them as standard descriptors.
  int fd = 0;
  do fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

}  // namespace ddprun
