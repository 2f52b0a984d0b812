#include "common/system.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/unique_fd.h"

namespace ddprun {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

std::string short_host_name() {
  const std::string full = host_name();
  return full.substr(0, full.find('.'));
}

void fill_random(std::span<unsigned char> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::getrandom(bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    CHECK(n > 0, "getrandom failed");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

std::string random_hex(std::size_t bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::vector<unsigned char> raw(bytes);
  fill_random(raw);
  std::string text;
  for (const unsigned char byte : raw) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

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

Result<FileBeside> FileBeside::write(const std::string& path, const std::string& text) {
  const auto cannot = [&path] { return Error::from_errno(errno, "cannot write " + path); };
  const std::string name = path + ".tmp." + std::to_string(::getpid());
  const UniqueFd fd(::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return cannot();
  FileBeside beside(name, {});
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t n = ::write(fd.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot();
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  if (::fstat(fd.get(), &beside.status_) != 0) return cannot();
  return beside;
}

FileBeside::FileBeside(FileBeside&& other) noexcept
    : path_(std::exchange(other.path_, std::string())), status_(other.status_) {}

FileBeside::~FileBeside() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<void> FileBeside::replace(const std::string& target) const {
  if (::rename(path_.c_str(), target.c_str()) != 0) return Error::from_errno(errno, "cannot write " + target);
  return {};
}

}  // namespace ddprun
