#include "launcher/kill_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "common/check.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

std::string read_small_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd) return text;
  char buffer[4096];
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

std::optional<pid_t> to_pid(std::string_view text) {
  pid_t pid = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (ec != std::errc() || end != text.data() + text.size() || pid <= 0) return std::nullopt;
  return pid;
}

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

template <typename Visit>
void for_each_pid(const std::string& folder, Visit visit) {
  const std::unique_ptr<DIR, CloseDir> dir(::opendir(folder.c_str()));
  if (!dir) return;
  while (const dirent* entry = ::readdir(dir.get())) {
    if (const auto pid = to_pid(entry->d_name)) visit(*pid);
  }
}

// The words of `text` from position `from` on.
std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t begin = text.find_first_not_of(" \n", at);
    if (begin == std::string_view::npos) break;
    at = std::min(text.find_first_of(" \n", begin), text.size());
    out.push_back(text.substr(begin, at - begin));
  }
  return out;
}

}  // namespace

void signal_process(pid_t pid, int signal) {
  CHECK(pid > 1, "signal to a process id that is none");
  ::kill(pid, signal);
}

void signal_group(pid_t leader, int signal) {
  CHECK(leader > 1, "signal to a process group that is none");
  ::kill(-leader, signal);
}

std::optional<ProcessStat> parse_process_stat(std::string_view line) {
  // The name in parentheses may hold spaces and parentheses: what we want starts after the last one.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  const auto fields = words(line.substr(name_end + 1));
  if (fields.size() < 4 || fields[0].size() != 1) return std::nullopt;
  ProcessStat stat;
  stat.state = fields[0][0];
  stat.parent = to_pid(fields[1]).value_or(0);
  stat.group = to_pid(fields[2]).value_or(0);
  stat.session = to_pid(fields[3]).value_or(0);
  return stat;
}

std::optional<ProcessStat> read_process_stat(const std::string& proc_root, pid_t pid) {
  return parse_process_stat(read_small_file(proc_root + "/" + std::to_string(pid) + "/stat"));
}

bool has_environment(const std::string& proc_root, pid_t pid, std::string_view name_and_value) {
  const std::string text = read_small_file(proc_root + "/" + std::to_string(pid) + "/environ");
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    if (std::string_view(text).substr(at, end - at) == name_and_value) return true;
    at = end + 1;
  }
  return false;
}

std::string make_job_token() {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;
  std::string value = "DDPRUN_JOB_TOKEN=" + std::to_string(::getpid()) + ".";
  for (int i = 0; i < 16; ++i) value += kDigits[random() % kDigits.size()];
  return value;
}

std::vector<pid_t> find_processes(const std::string& proc_root, const std::set<pid_t>& sessions,
                                  std::string_view token) {
  std::vector<pid_t> found;
  for_each_pid(proc_root, [&](pid_t pid) {
    if (pid == ::getpid() || pid == 1) return;
    const auto stat = read_process_stat(proc_root, pid);
    if (!stat || stat->state == 'Z' || stat->state == 'X') return;
    if (sessions.count(stat->session) != 0 || (!token.empty() && has_environment(proc_root, pid, token))) {
      found.push_back(pid);
    }
  });
  return found;
}

std::vector<pid_t> find_children(const std::string& proc_root, pid_t parent) {
  std::vector<pid_t> children;
  const std::string tasks = proc_root + "/" + std::to_string(parent) + "/task";
  bool listed = false;
  for_each_pid(tasks, [&](pid_t task) {
    const std::string path = tasks + "/" + std::to_string(task) + "/children";
    if (::access(path.c_str(), R_OK) != 0) return;
    listed = true;
    const std::string text = read_small_file(path);
    for (const auto word : words(text)) {
      if (const auto pid = to_pid(word)) children.push_back(*pid);
    }
  });
  if (listed) return children;
  for_each_pid(proc_root, [&](pid_t pid) {
    const auto stat = read_process_stat(proc_root, pid);
    if (stat && stat->parent == parent) children.push_back(pid);
  });
  return children;
}

bool shows_no_environment(const std::string& proc_root, pid_t pid) {
  return read_small_file(proc_root + "/" + std::to_string(pid) + "/environ").empty();
}

bool is_in_cgroup(const std::string& proc_root, pid_t pid, const std::string& folder) {
  const std::string text = "\n" + read_small_file(proc_root + "/" + std::to_string(pid) + "/cgroup");
  const std::size_t at = text.find("\n0::");
  if (at == std::string::npos) return false;
  const std::string name = text.substr(at + 4, text.find('\n', at + 1) - at - 4);
  const std::string last = folder.substr(folder.rfind('/'));  // "/ddprun-<pid>.<random>": there is no other
  return name.size() >= last.size() && name.compare(name.size() - last.size(), last.size(), last) == 0;
}

void kill_cgroup(const std::string& folder) {
  if (words(read_small_file(folder + "/cgroup.procs")).empty()) return;
  bool told = false;
  {
    const UniqueFd fd(::open((folder + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
    told = fd && ::write(fd.get(), "1", 1) == 1;
  }
  for (int round = 0; round < 1000; ++round) {
    const std::string text = read_small_file(folder + "/cgroup.procs");
    const auto members = words(text);
    if (members.empty()) return;
    for (const auto word : members) {
      const auto pid = to_pid(word);
      if (!told && pid && *pid > 1) signal_process(*pid, SIGKILL);  // before Linux 5.14: one by one
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool remove_cgroup_folder(const std::string& folder) {
  for (int round = 0; round < 500; ++round) {
    if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

std::vector<std::string> cgroup_places(const std::string& proc_root, const std::string& cgroup_root,
                                       const std::string& name) {
  std::string own;
  const std::string text = read_small_file(proc_root + "/self/cgroup");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (line.rfind("0::", 0) == 0) own = line.substr(3);
    at = end + 1;
  }
  std::vector<std::string> places;
  if (own.empty()) return places;
  for (const std::string& root : {cgroup_root, cgroup_root + "/unified"}) {
    if (::access((root + "/cgroup.controllers").c_str(), F_OK) != 0) continue;
    places.push_back(root + (own == "/" ? "" : own) + "/" + name);
  }
  return places;
}

}  // namespace ddprun::launcher
