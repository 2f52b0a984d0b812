#include "launcher/process/kill_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <memory>
#include <thread>

#include "common/check.h"
#include "common/system.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

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

// The strings of `text`, of which each ends with a NUL.
template <typename Visit>
void for_each_string(std::string_view text, Visit visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    visit(text.substr(at, end - at));
    at = end + 1;
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

// The control group and those that its processes have made in it, deepest first. There may be as many as they like: so
// many at a time.
constexpr std::size_t kMostGroups = 1000;
constexpr int kDeepestGroup = 64;

void list_groups(const std::string& folder, int depth, std::vector<std::string>& out) {
  struct stat info = {};
  // One link for its name, one for its own ".", one for each group in it.
  const bool leaf = ::stat(folder.c_str(), &info) != 0 || info.st_nlink <= 2 || depth == kDeepestGroup;
  std::vector<std::string> below;
  if (!leaf) {
    const std::unique_ptr<DIR, CloseDir> dir(::opendir(folder.c_str()));
    while (const dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
      const std::string_view name = entry->d_name;
      if (entry->d_type == DT_DIR && name != "." && name != "..") below.push_back(folder + "/" + entry->d_name);
      if (below.size() == kMostGroups) break;
    }
  }
  for (const auto& group : below) {
    if (out.size() < kMostGroups) list_groups(group, depth + 1, out);
  }
  out.push_back(folder);
}

std::vector<std::string> cgroup_tree(const std::string& folder) {
  std::vector<std::string> groups;
  list_groups(folder, 0, groups);
  return groups;
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
  const std::size_t name_begin = line.find('(') + 1;
  const auto fields = words(line.substr(name_end + 1));
  if (fields.size() < 4 || fields[0].size() != 1) return std::nullopt;
  const auto number = [&fields](std::size_t index, auto& value) {
    if (index >= fields.size()) return;
    std::from_chars(fields[index].data(), fields[index].data() + fields[index].size(), value);
  };
  ProcessStat stat;
  if (name_begin <= name_end) stat.name = line.substr(name_begin, name_end - name_begin);
  stat.state = fields[0][0];
  stat.parent = to_pid(fields[1]).value_or(0);
  stat.group = to_pid(fields[2]).value_or(0);
  stat.session = to_pid(fields[3]).value_or(0);
  number(19, stat.start_time);  // fields 22 and 52 of proc(5), which counts the id and the name
  number(49, stat.wait_status);
  return stat;
}

std::optional<ProcessStat> read_process_stat(const std::string& proc_root, pid_t pid) {
  return parse_process_stat(read_small_file(proc_root + "/" + std::to_string(pid) + "/stat"));
}

std::optional<std::string> find_token(const std::string& proc_root, pid_t pid, std::string_view token) {
  std::optional<std::string> found;
  for_each_string(read_small_file(proc_root + "/" + std::to_string(pid) + "/environ"), [&](std::string_view entry) {
    if (!entry.starts_with(token)) return;
    if (entry.size() == token.size() || entry[token.size()] == '.') found = entry;
  });
  return found;
}

std::string describe_command(const std::string& proc_root, pid_t pid, const ProcessStat& stat) {
  constexpr std::size_t kLength = 80;
  std::string text;
  // Of a process that hangs in the kernel the arguments may not be readable without hanging, too.
  if (stat.state != 'D') {
    for_each_string(read_small_file(proc_root + "/" + std::to_string(pid) + "/cmdline"), [&](std::string_view word) {
      if (text.size() > kLength) return;
      text += (text.empty() ? "" : " ") + std::string(word.substr(0, kLength));
    });
  }
  if (text.empty()) text = stat.name;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  if (text.size() > kLength) text = text.substr(0, kLength) + "...";
  return text;
}

bool is_tracker(const std::string& proc_root, pid_t pid) {
  std::size_t index = 0;
  bool found = false;
  for_each_string(read_small_file(proc_root + "/" + std::to_string(pid) + "/cmdline"), [&](std::string_view word) {
    const std::string_view name = word.substr(word.rfind('/') + 1);
    if (index == 0) found = name == "torch_shm_manager";
    // python ... -c 'from multiprocessing.resource_tracker import main;main(7)'
    if (word.starts_with("from multiprocessing.resource_tracker import")) found = true;
    ++index;
  });
  return found;
}

void signal_if_same(const std::string& proc_root, pid_t pid, unsigned long long start_time, int signal) {
  CHECK(pid > 1, "signal to a process id that is none");
  // A handle first, then the look: what it names cannot change any more. Without one (an old kernel, a sandbox) the
  // id could change hands between two calls, which nobody can help.
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const auto stat = read_process_stat(proc_root, pid);
  if (!stat || stat->start_time != start_time) return;
  if (handle) {
    if (::syscall(SYS_pidfd_send_signal, handle.get(), signal, nullptr, 0) == 0) return;
    if (errno != ENOSYS && errno != EPERM) return;  // it has ended: the id may be another's by now
  }
  ::kill(pid, signal);
}

std::string make_job_token() { return "DDPRUN_JOB_TOKEN=" + std::to_string(::getpid()) + "." + random_hex(8); }

std::vector<pid_t> find_processes(const std::string& proc_root, const std::set<pid_t>& sessions,
                                  std::string_view token) {
  std::vector<pid_t> found;
  for_each_pid(proc_root, [&](pid_t pid) {
    if (pid == ::getpid() || pid == 1) return;
    const auto stat = read_process_stat(proc_root, pid);
    if (!stat || stat->state == 'Z' || stat->state == 'X') return;
    if (sessions.count(stat->session) != 0 || (!token.empty() && find_token(proc_root, pid, token))) {
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

ProcessWalk::ProcessWalk(std::string proc_root, pid_t root, std::set<pid_t> without)
    : proc_root_(std::move(proc_root)), root_(root), without_(std::move(without)) {
  const std::string own = std::to_string(root_);
  scans_ = ::access((proc_root_ + "/" + own + "/task/" + own + "/children").c_str(), R_OK) != 0;
  if (scans_) folder_ = std::shared_ptr<DIR>(::opendir(proc_root_.c_str()), CloseDir());
  todo_.push_back(root_);
}

void ProcessWalk::also(pid_t pid) { meet(pid); }

void ProcessWalk::meet(pid_t pid) {
  if (pid == root_ || without_.count(pid) != 0 || !met_.insert(pid).second) return;
  auto stat = read_process_stat(proc_root_, pid);
  if (!stat) return;
  found_.emplace_back(pid, std::move(*stat));
  todo_.push_back(pid);
}

// Who is whose child, of all processes.
bool ProcessWalk::scan(std::size_t count) {
  while (folder_) {
    if (count-- == 0) return false;
    const dirent* const entry = ::readdir(folder_.get());
    if (entry == nullptr) {
      folder_.reset();
      break;
    }
    const auto pid = to_pid(entry->d_name);
    if (!pid) continue;
    if (const auto stat = read_process_stat(proc_root_, *pid)) children_.emplace(stat->parent, *pid);
  }
  return true;
}

// How many files it took.
std::size_t ProcessWalk::list_children(pid_t parent) {
  std::vector<pid_t> children;
  std::size_t files = 0;
  if (scans_) {
    const auto [begin, end] = children_.equal_range(parent);
    for (auto child = begin; child != end; ++child) children.push_back(child->second);
  } else {
    const std::string tasks = proc_root_ + "/" + std::to_string(parent) + "/task";
    for_each_pid(tasks, [&](pid_t task) {
      ++files;
      const std::string text = read_small_file(tasks + "/" + std::to_string(task) + "/children");
      for (const auto word : words(text)) {
        if (const auto pid = to_pid(word)) children.push_back(*pid);
      }
    });
  }
  for (const pid_t child : children) meet(child);
  return files + children.size();
}

bool ProcessWalk::step(std::size_t count) {
  if (scans_ && !scan(count)) return false;
  while (!todo_.empty()) {
    const pid_t next = todo_.back();
    todo_.pop_back();
    const std::size_t used = 1 + list_children(next);
    if (used >= count) return todo_.empty();
    count -= used;
  }
  return true;
}

std::vector<std::pair<pid_t, ProcessStat>> ProcessWalk::take() { return std::exchange(found_, {}); }

std::vector<pid_t> cgroup_members(const std::string& folder) {
  std::vector<pid_t> members;
  const std::string text = read_small_file(folder + "/cgroup.procs");
  for (const auto word : words(text)) {
    if (const auto pid = to_pid(word); pid && *pid > 1) members.push_back(*pid);
  }
  return members;
}

std::vector<pid_t> cgroup_tree_members(const std::string& folder) {
  std::vector<pid_t> members;
  for (const auto& group : cgroup_tree(folder)) {
    const auto here = cgroup_members(group);
    members.insert(members.end(), here.begin(), here.end());
  }
  return members;
}

void tell_cgroup_to_die(const std::string& folder) {
  const UniqueFd fd(::open((folder + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  if (fd && ::write(fd.get(), "1", 1) == 1) return;
  for (const pid_t pid : cgroup_tree_members(folder)) signal_process(pid, SIGKILL);  // before Linux 5.14: one by one
}

void kill_cgroup(const std::string& folder) {
  for (int round = 0; round < 1000 && !cgroup_tree_members(folder).empty(); ++round) {
    if (round % 100 == 0) tell_cgroup_to_die(folder);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool remove_empty_cgroup(const std::string& folder) {
  if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return true;
  if (errno != EBUSY && errno != ENOTEMPTY) return false;
  if (!cgroup_tree_members(folder).empty()) return false;  // who lives there may want its empty groups, too
  bool gone = false;
  for (const auto& group : cgroup_tree(folder)) gone = ::rmdir(group.c_str()) == 0 || errno == ENOENT;
  return gone;
}

bool remove_cgroup_folder(const std::string& folder) {
  for (int round = 0; round < 500; ++round) {
    if (remove_empty_cgroup(folder)) return true;
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
