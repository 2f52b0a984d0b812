#include "rendezvous/server/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/job_settings.h"
#include "rendezvous/membership/membership.h"

namespace ddprun::rendezvous {

namespace {

constexpr const char* kHeading = "ddprun-rendezvous state 1";
constexpr const char* kEnd = "end";  // a file without it was cut short

std::string to_hex(const std::string& text) {
  std::string hex;
  for (const char c : text) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

// "" for what is no hex.
std::string from_hex(const std::string& hex) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  std::string text;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    if (digit(hex[i]) < 0 || digit(hex[i + 1]) < 0) return "";
    text += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  }
  return hex.size() % 2 == 0 ? text : "";
}

// A file of that name from an earlier daemon is written over; a link is not followed.
Result<void> write_synced(const std::string& path, std::string_view text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return Error::from_errno(errno, "--state-file " + path);
  while (!text.empty()) {
    const ssize_t n = ::write(fd.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error::from_errno(errno, "--state-file " + path);
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  if (::fdatasync(fd.get()) != 0) return Error::from_errno(errno, "--state-file " + path);
  return Result<void>();
}

Result<void> sync_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Error::from_errno(errno, "--state-file: folder " + folder);
  // Some file systems know no fsync of a folder.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    return Error::from_errno(errno, "--state-file: folder " + folder);
  }
  return Result<void>();
}

}  // namespace

Result<std::vector<KnownWorld>> read_state(const std::string& path) {
  std::vector<KnownWorld> worlds;
  std::ifstream file(path);
  if (!file) {
    if (errno == ENOENT) return worlds;
    return Error::from_errno(errno, "--state-file " + path);
  }
  const auto broken = [&](const std::string& line) {
    return Error(Errc::malformed, "--state-file " + path + ": '" + line.substr(0, 80) +
                                      "' is not what a daemon of this version writes. If no job of an earlier daemon "
                                      "can be running, remove the file");
  };
  std::string line;
  if (!std::getline(file, line) || line != kHeading) return broken(line);
  while (std::getline(file, line)) {
    if (line == kEnd) return worlds;
    std::istringstream words(line);
    std::int64_t lost_after_ms = -1, round = -1;
    std::string hex;
    words >> lost_after_ms >> round >> hex;
    KnownWorld world;
    world.run_id = RunId(from_hex(hex));
    world.round = Round(round);
    world.lost_after = std::chrono::milliseconds(lost_after_ms);
    const bool in_bounds = lost_after_ms >= 0 && world.lost_after <= 2 * kMaxDuration && round >= 0;
    if (!words || !in_bounds || world.run_id.value.empty()) return broken(line);
    // A daemon of before there was a bound may have believed in longer leases.
    world.lost_after = std::min<std::chrono::milliseconds>(world.lost_after, kMaxLease + Membership::kLostMargin);
    worlds.push_back(std::move(world));
  }
  return broken("(the end)");
}

StateFile::StateFile(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

Result<StateFile> StateFile::open(const std::string& path) {
  const std::string name = path + ".lock";
  UniqueFd lock(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return Error::from_errno(errno, "--state-file " + path + ": cannot make its lock " + name);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Error::from_errno(errno, "--state-file " + name);
    return Error(Errc::refused, "--state-file " + path + " belongs to another daemon that runs (it holds the lock on " +
                                    name + "). Give each daemon its own file");
  }
  return StateFile(path, std::move(lock));
}

Result<void> StateFile::write(const std::vector<KnownWorld>& worlds) const {
  std::string text = std::string(kHeading) + "\n";
  for (const KnownWorld& world : worlds) {
    text += fmt::format("{} {} {}\n", world.lost_after.count(), world.round.value, to_hex(world.run_id.value));
  }
  text += std::string(kEnd) + "\n";
  const std::string fresh = path_ + ".new";
  if (auto written = write_synced(fresh, text); !written) {
    ::unlink(fresh.c_str());
    return written;
  }
  if (::rename(fresh.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    return Error::from_errno(error, "--state-file " + path_);
  }
  return sync_folder_of(path_);
}

}  // namespace ddprun::rendezvous
