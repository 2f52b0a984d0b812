#include "launcher/job/own_console.h"

#include <sys/stat.h>

#include <utility>

namespace ddprun::launcher {

OwnConsole::OwnConsole(OutputPolicy policy) : policy_(std::move(policy)) {
  struct stat out = {}, err = {};
  one_console_ = ::fstat(policy_.console_stdout, &out) == 0 && ::fstat(policy_.console_stderr, &err) == 0 &&
                 out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

bool OwnConsole::shows(const FailureRecord& failure) const {
  const auto found = ours_.find(static_cast<pid_t>(failure.pid));
  if (!one_console_ || found == ours_.end() || found->second != failure.rank) return false;
  const LocalRank rank = failure.local_rank;
  const bool out = policy_.tee.has_stdout(rank) || !policy_.redirects.has_stdout(rank);
  const bool err = policy_.tee.has_stderr(rank) || !policy_.redirects.has_stderr(rank);
  return out && err && (!policy_.console_ranks || policy_.console_ranks->count(rank.value) != 0);
}

}  // namespace ddprun::launcher
