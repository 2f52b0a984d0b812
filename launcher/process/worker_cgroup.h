#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "launcher/process/guard.h"

namespace ddprun::launcher {

// The version 2 control group that the workers of one attempt start in, where one can be made; else nothing, and the
// other ways to find their helpers have to do. Nothing here waits.
class WorkerCgroup {
 public:
  WorkerCgroup(std::string proc_root, std::string cgroup_root, bool wanted, std::shared_ptr<Guard> guard);
  ~WorkerCgroup();  // drops it; says what stays
  WorkerCgroup(const WorkerCgroup&) = delete;
  WorkerCgroup& operator=(const WorkerCgroup&) = delete;

  // A new one each attempt: a group that was once told to kill also kills what is started in it later (seen with
  // clone3 on Linux 6.18).
  void renew();
  int fd() const { return fd_.get(); }  // -1 = none
  // The processes in it and in the groups that they have made in it (no zombies).
  std::vector<pid_t> members() const;
  void kill_all();  // SIGKILL to all members at once
  void let_go();    // its members go on in our own group
  // Removes the emptied group with what was made in it, and older ones that could not be removed when it was their
  // time. What still does not go (a member that hangs in the kernel) stays the guard's, which tries again at the end.
  void drop();

 private:
  std::string proc_root_, cgroup_root_;
  bool wanted_;
  std::shared_ptr<Guard> guard_;
  std::string folder_;  // "" = none
  UniqueFd fd_;
  std::vector<std::string> old_;
};

}  // namespace ddprun::launcher
