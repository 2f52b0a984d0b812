#include "launcher/process/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace ddprun::launcher {
namespace {

std::string limit_text(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

// The lowest pids.max on the way up from our control group; "" when there is none.
std::string pids_max_text() {
  std::ifstream lines("/proc/self/cgroup");
  long long lowest = -1;
  std::string where;
  for (std::string line; std::getline(lines, line);) {
    const bool v2 = line.rfind("0::", 0) == 0;
    if (!v2 && line.find(":pids:") == std::string::npos) continue;
    std::string path = line.substr(line.rfind(":/") + 1);
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    for (path = path == "/" ? "" : path;; path.erase(path.rfind('/'))) {
      long long value = 0;
      std::ifstream file(root + path + "/pids.max");
      if (file >> value && (lowest < 0 || value < lowest)) {
        lowest = value;
        where = path.empty() ? "/" : path;
      }
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return lowest < 0 ? "" : fmt::format("; pids.max is {} in control group {}", lowest, where);
}

}  // namespace

std::string process_limit_text() {
  return fmt::format("ulimit -u is {} for this user{}", limit_text(RLIMIT_NPROC), pids_max_text());
}

std::string descriptor_limit_text() { return "ulimit -n is " + limit_text(RLIMIT_NOFILE); }

std::string kernel_text() {
  utsname name{};
  return ::uname(&name) == 0 ? fmt::format("{} {}", name.sysname, name.release) : "this kernel";
}

Error start_error(int error_number, std::string what) {
  const char* const words = std::strerror(error_number);
  switch (error_number) {
    case EAGAIN:
      return Error(Errc::exhausted,
                   fmt::format("{}: {}: the limit on processes is reached ({})", what, words, process_limit_text()));
    case EMFILE:
      return Error(Errc::exhausted, fmt::format("{}: {}: the limit on open files is reached ({})", what, words,
                                                descriptor_limit_text()));
    case ENOSYS:
    case EPERM:
      return Error(
          Errc::unsupported,
          fmt::format("{}: {}: {}, or the sandbox (seccomp profile) of this container, does not have this call", what,
                      words, kernel_text()));
    default:
      return Error::from_errno(error_number, std::move(what));
  }
}

}  // namespace ddprun::launcher
