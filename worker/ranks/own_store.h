#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "common/result.h"
#include "common/tcp.h"
#include "common/unique_fd.h"

namespace ddprun::trainer {

// The c10d store of a world that no launcher started, served by rank 0 as torch's env:// does it. The server is the one
// that ddprun serves its workers with: ddprun itself, as a child, by the name ddprun-store. Programs meet over bytes
// only, so the trainer has no server of its own.
class OwnStore {
 public:
  // Errors: not_found (no ddprun beside this program, in its package's bin/, or in PATH), system.
  static Result<std::unique_ptr<OwnStore>> serve(Listener listener);
  ~OwnStore();  // the child ends with us, however we end
  OwnStore(const OwnStore&) = delete;
  OwnStore& operator=(const OwnStore&) = delete;

 private:
  OwnStore(pid_t child, UniqueFd life) : child_(child), life_(std::move(life)) {}

  pid_t child_;
  UniqueFd life_;  // our end of a pipe: the child reads its end when we are gone
};

}  // namespace ddprun::trainer
