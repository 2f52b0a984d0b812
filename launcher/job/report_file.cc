#include "launcher/job/report_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "common/options.h"
#include "common/system.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

Error cannot_write(int error, const std::string& path) { return Error::from_errno(error, "cannot write " + path); }

Result<void> write_all(int fd, std::string_view text, const std::string& path) {
  const TimePoint end = SteadyClock::now() + ReportFile::kSpecialLimit;
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return cannot_write(errno, path);
    pollfd room{fd, POLLOUT, 0};
    if (SteadyClock::now() >= end ||
        ::poll(&room, 1, static_cast<int>(ReportFile::kSpecialLimit.count()) * 1000) == 0) {
      return Error(Errc::timed_out, "cannot write " + path + ": its reader takes nothing");
    }
  }
  return {};
}

bool is_special(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

// A rename would put a file in the place of /dev/null or /dev/stdout. Non-blocking: a pipe may have no reader.
Result<void> write_special(const std::string& path, const std::string& text) {
  // What a link in /dev leads to (a file that our output goes to) is not to be emptied.
  const int how = path.starts_with("/dev/") ? O_APPEND : O_CREAT | O_TRUNC;
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | how, 0666));
  if (!fd) return cannot_write(errno, path);
  return write_all(fd.get(), text, path);
}

std::chrono::nanoseconds modified(const struct stat& status) {
  return std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec);
}

// Puts `beside` in the place of `path` unless what is there was written less than `age` before it. False: it was.
Result<bool> take_place(const FileBeside& beside, const std::string& path, SteadyClock::duration age) {
  for (int round = 0; round < 100; ++round) {
    if (::link(beside.path().c_str(), path.c_str()) == 0) return true;
    if (errno != EEXIST) break;  // a file system without hard links
    const UniqueFd there(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat status = {};
    if (!there || ::fstat(there.get(), &status) != 0) continue;
    if (modified(status) > modified(beside.status()) - age) return false;
    // Several nodes may find the same old one: one of them replaces it, the others then find that one's.
    if (::flock(there.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    struct stat now = {};
    if (::stat(path.c_str(), &now) != 0 || now.st_ino != status.st_ino || now.st_dev != status.st_dev) continue;
    break;
  }
  if (auto replaced = beside.replace(path); !replaced) return std::move(replaced).error();
  return true;
}

std::string with_word(const std::string& path, const std::string& word) {
  const std::size_t slash = path.rfind('/');
  const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
  const std::size_t dot = path.rfind('.');
  const std::size_t at = dot == std::string::npos || dot <= name ? path.size() : dot;
  return path.substr(0, at) + "." + word + path.substr(at);
}

}  // namespace

Result<ReportFile> ReportFile::open(std::string path, std::string host, bool several_nodes) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return Error(Errc::invalid_argument, path + " is a folder; give a file");
  }
  // A file is replaced, so its folder has to be writable.
  std::string needed = path;
  if (!is_special(path)) {
    const auto slash = path.rfind('/');
    needed = slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
  }
  if (::access(needed.c_str(), W_OK) != 0) return cannot_write(errno, path);
  for (char& c : host) {
    if (c == '/' || c == '\0') c = '_';
  }
  return ReportFile(std::move(path), std::move(host), several_nodes);
}

Result<std::string> ReportFile::write(const std::string& text) const {
  if (is_special(path_)) {
    if (auto written = write_special(path_, text); !written) return std::move(written).error();
    return path_;
  }
  auto beside = FileBeside::write(path_, text);
  if (!beside) return std::move(beside).error();
  const auto age = SteadyClock::now() - since_;
  const std::string names[] = {path_, with_word(path_, host_),
                               with_word(path_, host_ + "." + std::to_string(::getpid()))};
  for (const auto& name : names) {
    if (!several_nodes_ || &name == &names[2]) {
      if (auto replaced = beside->replace(name); !replaced) return std::move(replaced).error();
      return name;
    }
    auto placed = take_place(*beside, name, age);
    if (!placed) return std::move(placed).error();
    if (*placed) return name;
  }
  return path_;
}

Result<void> write_file(const std::string& path, const std::string& text) {
  if (is_special(path)) return write_special(path, text);
  auto beside = FileBeside::write(path, text);
  if (!beside) return std::move(beside).error();
  return beside->replace(path);
}

bool hand_over_report(const std::string& json) {
  const auto text = process_environment()("DDPRUN_HOST_REPORT_FD");
  const int number = text ? std::atoi(text->c_str()) : -1;
  struct stat info {};
  // A variable that somebody left behind must not make us write into a file of his: ours has no name and is empty.
  if (number < 3 || ::fstat(number, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 0 || info.st_size != 0) {
    return false;
  }
  return write_all(number, json, "the report for the starting host").has_value();
}

}  // namespace ddprun::launcher
