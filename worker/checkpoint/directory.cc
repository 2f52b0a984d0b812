#include "worker/checkpoint/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>

#include "common/clock.h"
#include "worker/base/crc32c.h"
#include "worker/base/file_bytes.h"

namespace ddprun::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kRemoving = ".removing-";
constexpr std::string_view kLink = "latest";
constexpr std::string_view kNewLink = ".latest-new";

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

Result<void> write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  // Pieces of at most 64 MiB: a signal or a full disk is seen early.
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{64} << 20));
    if (done < 0) {
      if (errno == EINTR) continue;
      return Error::from_errno(errno, "cannot write " + path);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

Result<void> sync_folder(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Error::from_errno(errno, path);
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return Error::from_errno(errno, "fsync of " + path);
  return {};
}

// Writes and fsyncs one file; gives its checksum and size.
Result<std::pair<std::uint32_t, std::uint64_t>> write_file(const std::string& path, const FileContent& content) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return Error::from_errno(errno, "cannot create " + path);
  std::uint32_t crc = 0;
  std::uint64_t size = 0;
  for (const std::span<const std::byte> piece : content.pieces) {
    auto written = write_all(fd.get(), piece, path);
    if (!written) return std::move(written).error();
    crc = crc32c(piece, crc);
    size += piece.size();
  }
  if (::fsync(fd.get()) != 0) return Error::from_errno(errno, "fsync of " + path);
  // Close here: some file systems report a full disk only now.
  if (::close(fd.release()) != 0) return Error::from_errno(errno, "close of " + path);
  return std::pair(crc, size);
}

Result<void> fill_folder(const std::string& folder, const std::vector<FileContent>& files) {
  std::string list;
  for (const FileContent& file : files) {
    auto written = write_file(folder + "/" + file.name, file);
    if (!written) return std::move(written).error();
    list += fmt::format("{:08x} {} {}\n", written->first, written->second, file.name);
  }
  // The list vouches for itself in its last line.
  list += fmt::format("{:08x} {} {}\n", crc32c(bytes_of(list)), list.size(), kChecksumFile);
  auto written = write_file(folder + "/" + kChecksumFile, FileContent{kChecksumFile, {bytes_of(list)}});
  if (!written) return std::move(written).error();
  return sync_folder(folder);
}

struct ListEntry {
  std::uint32_t crc = 0;
  std::uint64_t size = 0;
  std::string name;
};

// "e3069283 1234 model.safetensors"
std::optional<ListEntry> parse_entry(const std::string& line) {
  const std::size_t first = line.find(' ');
  const std::size_t second = first == std::string::npos ? first : line.find(' ', first + 1);
  if (second == std::string::npos) return std::nullopt;
  ListEntry entry;
  const char* text = line.data();
  if (std::from_chars(text, text + first, entry.crc, 16).ptr != text + first) return std::nullopt;
  if (std::from_chars(text + first + 1, text + second, entry.size).ptr != text + second) return std::nullopt;
  entry.name = line.substr(second + 1);
  return entry;
}

}  // namespace

std::string folder_name(std::int64_t step) { return fmt::format("{}{:09}", kPrefix, step); }

std::optional<std::int64_t> step_of_folder(const std::string& name) {
  if (name.rfind(kPrefix, 0) != 0) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  // Only names that we give: "step-40" is somebody else's, and no path of ours would find it.
  return folder_name(step) == name ? std::optional(step) : std::nullopt;
}

Result<CheckpointDirectory> CheckpointDirectory::open(const std::string& path) {
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed) return file_error(failed.value(), "cannot make the folder " + path);
  const std::string lock_path = path + "/.lock";
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  // The lock may be there already: then it says nothing about the folder.
  if (!lock || ::access(path.c_str(), W_OK | X_OK) != 0) return file_error(errno, "cannot write in " + path);
  const TimePoint give_up = SteadyClock::now() + std::chrono::seconds(10);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;  // a file system without locks: go on without
    if (SteadyClock::now() > give_up) {
      return Error(Errc::refused, fmt::format("{}: another run writes its checkpoints here; choose another "
                                              "checkpoint.dir or stop that run",
                                              path));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return CheckpointDirectory(path, std::move(lock));
}

Result<std::vector<std::int64_t>> steps_in(const std::string& path) {
  std::vector<std::int64_t> found;
  std::error_code failed;
  for (fs::directory_iterator it(path, failed), end; !failed && it != end; it.increment(failed)) {
    const auto step = step_of_folder(it->path().filename().string());
    std::error_code ignored;
    if (step && it->is_directory(ignored)) found.push_back(*step);
  }
  if (failed) return Error(Errc::system, fmt::format("cannot read {}: {}", path, failed.message()));
  std::sort(found.begin(), found.end());
  return found;
}

std::string CheckpointDirectory::path_of(std::int64_t step) const { return path_ + "/" + folder_name(step); }

Result<void> CheckpointDirectory::write(std::int64_t step, const std::vector<FileContent>& files) const {
  const std::string working = path_ + "/" + std::string(kWriting) + folder_name(step);
  std::error_code ignored;
  fs::create_directories(path_, ignored);  // somebody may have removed it meanwhile; mkdir says what is wrong
  fs::remove_all(working, ignored);
  Result<void> done;
  if (::mkdir(working.c_str(), 0777) != 0) {
    done = Error::from_errno(errno, "cannot make the folder " + working);
  } else {
    done = fill_folder(working, files);
  }
  if (done && ::rename(working.c_str(), path_of(step).c_str()) != 0) {
    done = Error::from_errno(errno, "rename of " + working);
    // This step was saved before (a run that was started again at its end): the new one takes its place, at once where
    // the file system can, so that a kill never leaves none.
    const std::string old = path_ + "/" + std::string(kRemoving) + folder_name(step);
    fs::remove_all(old, ignored);
    if (::renameat2(AT_FDCWD, working.c_str(), AT_FDCWD, path_of(step).c_str(), RENAME_EXCHANGE) == 0) {
      done = Result<void>();
      fs::remove_all(working, ignored);
    } else if (::rename(path_of(step).c_str(), old.c_str()) == 0) {
      done = ::rename(working.c_str(), path_of(step).c_str()) == 0
                 ? Result<void>()
                 : Result<void>(Error::from_errno(errno, "rename of " + working));
      fs::remove_all(old, ignored);
    }
  }
  if (!done) {
    fs::remove_all(working, ignored);
    return std::move(done).error().with_context(folder_name(step));
  }
  auto synced = sync_folder(path_);
  if (!synced) return std::move(synced).error();
  // For people and scripts; resume does not rely on it.
  const std::string new_link = path_ + "/" + std::string(kNewLink);
  ::unlink(new_link.c_str());
  if (::symlink(folder_name(step).c_str(), new_link.c_str()) == 0) {
    const std::string link = path_ + "/" + std::string(kLink);
    bool linked = ::rename(new_link.c_str(), link.c_str()) == 0;
    if (!linked && latest_is_a_folder()) {
      // The link was followed when somebody copied the folder. What is in it stays, under a name that does not lie.
      const std::string aside = path_ + "/" + std::string(kLink) + "-before-" + folder_name(step);
      linked = ::rename(link.c_str(), aside.c_str()) == 0 && ::rename(new_link.c_str(), link.c_str()) == 0;
    }
    if (!linked) ::unlink(new_link.c_str());
  }
  return {};
}

bool CheckpointDirectory::latest_is_a_folder() const {
  std::error_code ignored;
  return fs::symlink_status(path_ + "/" + std::string(kLink), ignored).type() == fs::file_type::directory;
}

Result<void> CheckpointDirectory::mark_best(std::int64_t step) const {
  const std::string fresh = path_ + "/.new-best";
  ::unlink(fresh.c_str());
  if (::symlink(folder_name(step).c_str(), fresh.c_str()) == 0 &&
      ::rename(fresh.c_str(), (path_ + "/" + kBestLink).c_str()) == 0) {
    return {};
  }
  const Error why = Error::from_errno(errno, fmt::format("cannot make the link {}/{}", path_, kBestLink));
  ::unlink(fresh.c_str());
  return why;
}

void CheckpointDirectory::prune(std::int64_t keep) const {
  const auto found = steps();
  if (!found) return;
  std::error_code ignored;
  const std::string best = fs::read_symlink(path_ + "/" + kBestLink, ignored).filename().string();
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < found->size(); ++i) {
    if (folder_name((*found)[i]) == best) continue;
    // Renamed first, so that a half-removed one is never taken for a checkpoint.
    const std::string doomed = path_ + "/" + std::string(kRemoving) + folder_name((*found)[i]);
    fs::remove_all(doomed, ignored);
    fs::rename(path_of((*found)[i]), doomed, ignored);
  }
  std::vector<fs::path> hidden;
  for (fs::directory_iterator it(path_, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(kWriting, 0) == 0 || name.rfind(kRemoving, 0) == 0) hidden.push_back(it->path());
  }
  for (const fs::path& path : hidden) fs::remove_all(path, ignored);
}

Result<void> CheckpointDirectory::set_aside(std::int64_t step) const {
  const std::string aside = path_ + "/damaged-" + folder_name(step);
  std::error_code failed;
  fs::remove_all(aside, failed);
  fs::rename(path_of(step), aside, failed);
  if (failed) return Error(Errc::system, fmt::format("cannot rename {}: {}", path_of(step), failed.message()));
  return {};
}

Result<CheckpointFiles> read_checkpoint(const std::string& folder) {
  const std::string list_path = folder + "/" + kChecksumFile;
  auto list = read_whole(list_path);
  if (!list) return std::move(list).error();
  const std::span<const std::byte> raw(*list);
  const std::string text(reinterpret_cast<const char*>(raw.data()), raw.size());
  // Last line first: it vouches for the others, so that a damaged name is not blamed on the file it names.
  const std::size_t last = text.size() < 2 ? std::string::npos : text.rfind('\n', text.size() - 2);
  if (last == std::string::npos || text.back() != '\n') return Error(Errc::malformed, list_path + ": damaged or empty");
  const auto own = parse_entry(text.substr(last + 1, text.size() - last - 2));
  if (!own || own->name != kChecksumFile || own->size != last + 1 || own->crc != crc32c(raw.subspan(0, last + 1))) {
    return Error(Errc::malformed, list_path + ": its own checksum does not match");
  }
  CheckpointFiles files;
  for (std::size_t at = 0; at <= last;) {
    const std::size_t end = text.find('\n', at);
    const auto entry = parse_entry(text.substr(at, end - at));
    if (!entry) return Error(Errc::malformed, list_path + ": a line that is not CRC, size and name");
    auto file = read_whole(folder + "/" + entry->name);
    if (!file) return std::move(file).error();
    if (file->size() != entry->size) {
      return Error(Errc::malformed,
                   fmt::format("{}/{}: {} bytes, {} were written", folder, entry->name, file->size(), entry->size));
    }
    if (crc32c(*file) != entry->crc) {
      return Error(Errc::malformed, fmt::format("{}/{}: the checksum does not match", folder, entry->name));
    }
    files[entry->name] = std::move(*file);
    at = end + 1;
  }
  return files;
}

}  // namespace ddprun::checkpoint
