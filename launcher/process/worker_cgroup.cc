#include "launcher/process/worker_cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "launcher/process/kill_tree.h"

namespace ddprun::launcher {

WorkerCgroup::WorkerCgroup(std::string proc_root, std::string cgroup_root, bool wanted, std::shared_ptr<Guard> guard)
    : proc_root_(std::move(proc_root)),
      cgroup_root_(std::move(cgroup_root)),
      wanted_(wanted),
      guard_(std::move(guard)) {}

WorkerCgroup::~WorkerCgroup() {
  drop();
  for (const auto& folder : old_) {
    const bool lived_in = !cgroup_tree_members(folder).empty();
    log_warning("the control group {} stays{}: remove it with find {} -depth -type d -exec rmdir {{}} +", folder,
                lived_in ? " for the processes in it" : ", unless the guard process can remove it in a moment", folder);
  }
}

void WorkerCgroup::renew() {
  drop();
  if (!wanted_) return;
  const std::string name = "ddprun-" + make_job_token().substr(sizeof "DDPRUN_JOB_TOKEN");
  for (const auto& place : cgroup_places(proc_root_, cgroup_root_, name)) {
    if (guard_) guard_->add_cgroup(place);  // first, so that it is not left behind
    if (::mkdir(place.c_str(), 0755) == 0) {
      folder_ = place;
      fd_.reset(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      return;
    }
    if (guard_) guard_->remove_cgroup(place);
  }
  wanted_ = false;
}

std::vector<pid_t> WorkerCgroup::members() const {
  return folder_.empty() ? std::vector<pid_t>() : cgroup_tree_members(folder_);
}

void WorkerCgroup::kill_all() {
  if (!folder_.empty() && !cgroup_tree_members(folder_).empty()) tell_cgroup_to_die(folder_);
}

void WorkerCgroup::let_go() {
  if (folder_.empty()) return;
  const UniqueFd parent(::open((folder_ + "/../cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  for (const pid_t pid : cgroup_members(folder_)) {
    const std::string text = std::to_string(pid);
    if (::write(parent.get(), text.data(), text.size()) < 0) break;
  }
  // What stays (in a group of its own, too) keeps its group, and must not be killed with it.
  if (cgroup_tree_members(folder_).empty()) return;
  if (guard_) guard_->remove_cgroup(folder_);
  fd_.reset();
  old_.push_back(std::exchange(folder_, ""));
}

void WorkerCgroup::drop() {
  fd_.reset();
  if (!folder_.empty()) old_.push_back(std::move(folder_));
  folder_.clear();
  std::erase_if(old_, [this](const std::string& folder) {
    if (!remove_empty_cgroup(folder)) return false;
    if (guard_) guard_->remove_cgroup(folder);
    return true;
  });
}

}  // namespace ddprun::launcher
