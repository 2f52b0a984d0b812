#include "worker/launcher_mark.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

namespace ddprun::trainer {
namespace {

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// When the process started, in ticks since the boot: field 22 of /proc/PID/stat. Empty: not known.
std::string start_of(pid_t pid) {
  const std::string line = read_line(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = line.rfind(')');  // the name may hold spaces and brackets
  if (name_end == std::string::npos) return "";
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    if (!(fields >> field)) return "";
  }
  return field;
}

// FNV-1a, 63 bits.
std::int64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return static_cast<std::int64_t>(hash >> 1);
}

}  // namespace

std::int64_t launcher_mark(const WorkerEnv& env) {
  if (!env.launched) return 0;
  const pid_t parent = ::getppid();
  const std::string start = start_of(parent);
  const std::string boot = read_line("/proc/sys/kernel/random/boot_id");
  if (start.empty() || boot.empty()) return 0;
  std::error_code ignored;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  return hash_of(fmt::format("{} {} {} {}", boot, space, parent, start));
}

Result<std::vector<std::int64_t>> gather_launchers(comm::Communicator& communicator, const WorkerEnv& env) {
  std::int64_t mine = launcher_mark(env);
  std::vector<std::int64_t> all(static_cast<std::size_t>(communicator.world_size()));
  auto gathered =
      communicator
          .all_gather(comm::Block{&mine, 1, comm::DType::i64}, comm::Block{all.data(), all.size(), comm::DType::i64})
          .wait();
  if (!gathered) return std::move(gathered).error();
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase(all, 0);
  return all;
}

bool share_one(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  std::vector<std::int64_t> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return !common.empty();
}

}  // namespace ddprun::trainer
