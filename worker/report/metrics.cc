#include "worker/report/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/clock.h"
#include "worker/base/file_bytes.h"

namespace ddprun::trainer {

// A tenth, or three digits where that is more.
static double three_digits(double speed) {
  if (!(speed > 0) || speed >= 100) return std::round(speed * 10) / 10;
  const double unit = std::pow(10, std::floor(std::log10(speed)) - 2);
  return std::round(speed / unit) * unit;
}

std::string to_json_line(const StepMetrics& m) {
  nlohmann::ordered_json json;
  json["step"] = m.step;
  json["epoch"] = m.epoch;
  json["loss"] = m.loss;  // nlohmann writes the shortest text that reads back equal; nan and inf become null
  json["lr"] = m.lr;
  json["scale"] = m.scale;
  json["skipped"] = m.skipped;
  json["grad_norm"] = m.grad_norm;
  json["samples_per_s"] = three_digits(m.samples_per_s);
  if (m.tokens_per_s > 0) json["tokens_per_s"] = three_digits(m.tokens_per_s);
  return json.dump() + "\n";
}

static Result<void> make_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code failed;
  if (!parent.empty()) std::filesystem::create_directories(parent, failed);
  if (failed) return file_error(failed.value(), fmt::format("cannot make the folder of {}", path));
  return {};
}

Result<void> check_writable(const std::string& path) {
  auto made = make_folder_of(path);
  if (!made) return made;
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0) {  // a device or a pipe may well be wanted
    if (S_ISDIR(info.st_mode)) return file_error(EISDIR, "cannot write " + path);
    if (S_ISSOCK(info.st_mode)) return file_error(ENXIO, "cannot write " + path);
  }
  if (::access(path.c_str(), W_OK) == 0) return {};
  const int why = errno;
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (why == ENOENT && ::access(parent.empty() ? "." : parent.c_str(), W_OK | X_OK) == 0) return {};
  return file_error(why == ENOENT ? errno : why, "cannot write " + path);
}

// False: another process has it.
static bool lock(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return true;
  const TimePoint give_up = SteadyClock::now() + std::chrono::seconds(2);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return true;
    if (SteadyClock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

Result<LineFile> LineFile::open(const std::string& path, std::int64_t keep_bytes) {
  return open_as(path, keep_bytes, /*alone=*/false);
}

Result<LineFile> LineFile::open_alone(const std::string& path, std::int64_t keep_bytes) {
  return open_as(path, keep_bytes, /*alone=*/true);
}

Result<LineFile> LineFile::open_as(const std::string& path, std::int64_t keep_bytes, bool alone) {
  auto made = make_folder_of(path);
  if (!made) return std::move(made).error();
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd) return file_error(errno, "cannot write " + path);
  if (alone && !lock(fd.get())) {
    return Error(Errc::invalid_argument, path + ": another run writes it; give each run its own file");
  }
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return Error::from_errno(errno, path);
  std::int64_t size = info.st_size;
  if (keep_bytes >= 0 && keep_bytes < size) {
    if (::ftruncate(fd.get(), keep_bytes) != 0) return Error::from_errno(errno, "cannot cut " + path);
    size = keep_bytes;
  }
  return LineFile(path, std::move(fd), size);
}

Result<void> LineFile::append(const std::string& lines) {
  std::size_t done = 0;
  while (done < lines.size()) {
    const ssize_t n = ::write(fd_.get(), lines.data() + done, lines.size() - done);
    if (n < 0) {
      if (errno == EINTR) continue;
      const int why = errno;
      // No half lines: what follows would be glued to them.
      if (done > 0 && ::ftruncate(fd_.get(), size_) != 0) size_ += static_cast<std::int64_t>(done);
      return Error::from_errno(why, "cannot write " + path_);
    }
    done += static_cast<std::size_t>(n);
  }
  size_ += static_cast<std::int64_t>(done);
  return {};
}

Result<std::int64_t> metrics_bytes_up_to(const std::string& path, std::int64_t step, bool validated) {
  if (step == 0) return std::int64_t{0};
  auto bytes = read_file(path, std::size_t{8} << 30);
  if (!bytes) {
    if (bytes.error().code() == Errc::not_found) return std::int64_t{0};
    return std::move(bytes).error();
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) break;
    const auto json = nlohmann::json::parse(text.substr(at, end - at), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer() ||
        json["step"].get<std::int64_t>() > step) {
      break;
    }
    if (!validated && json["step"].get<std::int64_t>() == step && json.contains("validation")) break;
    at = end + 1;
  }
  return static_cast<std::int64_t>(at);
}

}  // namespace ddprun::trainer
