#include "launcher/process/oom.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "common/system.h"

namespace ddprun::launcher {
namespace {

// The number after `key` in lines "key number".
std::optional<std::uint64_t> number_of(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  std::string name;
  std::uint64_t value;
  while (lines >> name) {
    if (!(lines >> value)) {
      lines.clear();
      continue;
    }
    if (name == key) return value;
  }
  return std::nullopt;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr double kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024;
  const auto value = static_cast<double>(bytes);
  if (value >= kGiB) return fmt::format("{:.1f} GiB", value / kGiB);
  if (value >= kMiB) return fmt::format("{:.1f} MiB", value / kMiB);
  return fmt::format("{:.1f} KiB", value / kKiB);
}

OomWatch::OomWatch(std::string proc_root, std::string cgroup_root, std::string kernel_log)
    : proc_root_(std::move(proc_root)), cgroup_root_(std::move(cgroup_root)), kernel_log_path_(std::move(kernel_log)) {}

// Takes in what is new: "oom-kill:constraint=...,oom_memcg=/job,task_memcg=/job/x,task=python,pid=77,uid=0". The ids
// are those of the first pid namespace: in another nothing matches, and the counters have to do.
void OomWatch::read_kernel_log() {
  if (!kernel_log_) return;
  char record[8192];
  while (true) {
    const ssize_t n = ::read(kernel_log_.get(), record, sizeof record);
    if (n < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: older records were overwritten
    if (n <= 0) break;
    kernel_log_rest_.append(record, static_cast<std::size_t>(n));
  }
  for (std::size_t end; (end = kernel_log_rest_.find('\n')) != std::string::npos; kernel_log_rest_.erase(0, end + 1)) {
    const std::string line = kernel_log_rest_.substr(0, end);
    const std::size_t pid_at = line.rfind(",pid=");
    if (line.find("oom-kill:") == std::string::npos || pid_at == std::string::npos) continue;
    const auto pid = static_cast<pid_t>(std::strtol(line.c_str() + pid_at + 5, nullptr, 10));
    std::string group;
    if (const std::size_t at = line.find("oom_memcg="); at != std::string::npos) {
      group = line.substr(at + 10, line.find(',', at) - at - 10);
    }
    named_[pid] = group;
  }
}

OomWatch::Group OomWatch::locate(const std::string& pid) const {
  std::istringstream lines(read_small_file(proc_root_ + "/" + pid + "/cgroup"));
  Group v1, v2;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (const auto gone = path.rfind(" (deleted)"); gone != std::string::npos) path.erase(gone);
    const std::string tail = path == "/" ? "" : path;
    if (controllers.find(",memory,") != std::string::npos) {
      v1.name = path;
      // In a container the path may be the host's while the mount shows only our own part.
      for (const auto& folder : {cgroup_root_ + "/memory" + tail, cgroup_root_ + "/memory"}) {
        if (v1.folder.empty() && exists(folder + "/memory.oom_control")) v1.folder = folder;
      }
    } else if (controllers == ",,") {
      v2.name = path;
      v2.v2 = true;
      // The group itself need not have the memory controller (ours for the workers has not): the nearest that has.
      for (std::string up = tail; v2.folder.empty(); up.erase(up.rfind('/'))) {
        for (const auto& folder : {cgroup_root_ + up, cgroup_root_ + "/unified" + up}) {
          if (!v2.folder.empty() || !exists(folder + "/memory.events")) continue;
          v2.folder = folder;
          v2.name = up.empty() ? "/" : up;
        }
        if (up.empty()) break;
      }
    }
  }
  return v1.folder.empty() ? v2 : v1;
}

std::optional<std::uint64_t> OomWatch::kills(const Group& group) const {
  if (group.folder.empty()) return std::nullopt;
  return number_of(read_small_file(group.folder + (group.v2 ? "/memory.events" : "/memory.oom_control")), "oom_kill");
}

std::optional<std::uint64_t> OomWatch::kills_of_host() const {
  return number_of(read_small_file(proc_root_ + "/vmstat"), "oom_kill");
}

std::string OomWatch::limit_text(const Group& group) const {
  std::optional<std::uint64_t> limit;
  if (group.v2) {
    // The nearest limit on the way up.
    for (std::string folder = group.folder; folder.size() >= cgroup_root_.size() && !limit;
         folder.erase(folder.rfind('/'))) {
      std::istringstream text(read_small_file(folder + "/memory.max"));
      std::uint64_t value;
      if (text >> value) limit = value;
      if (folder.find('/') == std::string::npos) break;
    }
  } else {
    limit = number_of(read_small_file(group.folder + "/memory.stat"), "hierarchical_memory_limit");
    if (limit && *limit >= (1ULL << 62)) limit.reset();
  }
  if (!limit) return "";
  return "limit " + bytes_text(*limit) + " of control group " + group.name;
}

void OomWatch::mark() {
  own_ = locate("self");
  own_before_ = kills(own_).value_or(0);
  host_before_ = kills_of_host();
  attributed_ = 0;
  named_.clear();
  kernel_log_rest_.clear();
  if (!kernel_log_) kernel_log_.reset(::open(kernel_log_path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (kernel_log_) ::lseek(kernel_log_.get(), 0, SEEK_END);
}

OomWatch::Verdict OomWatch::judge(pid_t pid, const ExitStatus& status) {
  Verdict verdict;
  if (status.success()) return verdict;
  const auto host_now = kills_of_host();
  // The host counts every kill: when its counter stands still nobody was killed for memory.
  if (host_before_ && host_now && *host_now <= *host_before_) return verdict;
  read_kernel_log();
  if (const auto found = named_.find(pid); found != named_.end()) {
    ++attributed_;
    verdict.out_of_memory = true;
    Group group;
    group.name = found->second;
    group.v2 = own_.v2;
    group.folder = cgroup_root_ + (own_.v2 ? "" : "/memory") + group.name;
    verdict.detail = group.name.empty() ? "the host's memory" : limit_text(group);
    return verdict;
  }
  Group group = locate(std::to_string(pid));
  // Of a dead process version 1 tells only "/".
  if (!own_.v2 && (group.folder.empty() || group.name == "/")) group = own_;
  const auto now = kills(group);
  if (now) {
    // A group of the worker's own has no count from before; the host's counter says that this one is fresh.
    const std::uint64_t before = group.folder == own_.folder ? own_before_ : 0;
    const std::uint64_t fresh = *now > before ? *now - before : 0;
    if (status.signal == SIGKILL ? fresh == 0 : fresh <= attributed_) return verdict;
    verdict.detail = limit_text(group);
  } else if (status.signal != SIGKILL || !host_before_ || !host_now) {
    return verdict;  // no counter of its own: only a SIGKILL beside a fresh kill on this host is evidence
  } else {
    verdict.detail = "the host's memory";
  }
  verdict.out_of_memory = true;
  if (status.signal == SIGKILL) {
    ++attributed_;
  } else {
    verdict.detail += (verdict.detail.empty() ? "" : "; ") + std::string("a process that it had started was killed");
  }
  return verdict;
}

}  // namespace ddprun::launcher
