#include "rendezvous/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "common/rdzv_protocol.h"
#include "common/unique_fd.h"

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
    const bool in_bounds = lost_after_ms >= 0 && world.lost_after <= 2 * rdzv::kMaxDuration && round >= 0;
    if (!words || !in_bounds || world.run_id.value.empty()) return broken(line);
    worlds.push_back(std::move(world));
  }
  return broken("(the end)");
}

Result<void> write_state(const std::string& path, const std::vector<KnownWorld>& worlds) {
  std::string text = std::string(kHeading) + "\n";
  for (const KnownWorld& world : worlds) {
    text += fmt::format("{} {} {}\n", world.lost_after.count(), world.round.value, to_hex(world.run_id.value));
  }
  text += std::string(kEnd) + "\n";
  const std::string fresh = path + ".new";
  const UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return Error::from_errno(errno, "--state-file " + fresh);
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::write(fd.get(), text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::unlink(fresh.c_str());
      return Error::from_errno(error, "--state-file " + fresh);
    }
    written += static_cast<std::size_t>(n);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return Error::from_errno(errno, "--state-file " + path);
  return Result<void>();
}

}  // namespace ddprun::rendezvous
