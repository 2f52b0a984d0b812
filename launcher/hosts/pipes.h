#pragma once

#include <signal.h>

#include <cstddef>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "launcher/process/process.h"

// Pipes and signals for a loop over poll(2): nothing here waits.
namespace ddprun::launcher::hosts {

struct Pipe {
  UniqueFd read, write;
};
// Close-on-exec. Errors: exhausted, system.
Result<Pipe> make_pipe();
void set_nonblocking(int fd);

// Appends what is there, at most `limit` bytes. False: the end, or an error, which is one for us.
bool read_some(int fd, std::string& into, std::size_t limit = 256 * 1024);
// Writes what `bytes` holds as far as it goes, and drops that. False: nobody reads there.
bool write_some(int fd, std::string& bytes);

// The numbers of a signalfd instead of handlers; none of `numbers` that was ignored when we started. SIGCHLD is one.
class SignalPipe {
 public:
  static Result<SignalPipe> open(const std::vector<int>& numbers, const InheritedSignals& inherited);
  int fd() const { return fd_.get(); }
  std::vector<int> take();  // what has come, SIGCHLD left out

 private:
  explicit SignalPipe(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace ddprun::launcher::hosts
