#include "worker/base/file_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <exception>

#include "common/unique_fd.h"

namespace ddprun {
namespace {

Result<UniqueFd> open_file(const std::string& path, std::size_t& size, FileKind kind = FileKind::regular) {
  struct stat info = {};
  // Before open(), which waits at a pipe until somebody writes to it.
  if (::stat(path.c_str(), &info) != 0) return file_error(errno, path);
  if (S_ISDIR(info.st_mode)) return Error(Errc::invalid_argument, path + ": is a folder, not a file");
  if (kind == FileKind::regular && !S_ISREG(info.st_mode)) {
    return Error(Errc::invalid_argument, path + ": is a pipe, socket or device, not a file");
  }
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return file_error(errno, path);
  if (::fstat(fd.get(), &info) != 0) return file_error(errno, path);
  size = static_cast<std::size_t>(info.st_size);
  return fd;
}

}  // namespace

Error file_error(int error_number, const std::string& what) {
  switch (error_number) {
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return Error(Errc::invalid_argument, what + ": " + std::strerror(error_number));
    default:
      return Error::from_errno(error_number, what);
  }
}

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  std::size_t size = 0;
  auto fd = open_file(path, size);
  if (!fd) return std::move(fd).error();
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile(path, nullptr, 0));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd->get(), 0);
  if (data == MAP_FAILED) return Error::from_errno(errno, "mmap of " + path);
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::vector<std::byte>> read_whole(const std::string& path) {
  std::size_t size = 0;
  auto fd = open_file(path, size);
  if (!fd) return std::move(fd).error();
  std::vector<std::byte> bytes;
  try {
    bytes.resize(size);
  } catch (const std::exception&) {
    return Error(Errc::system, fmt::format("{}: no memory for its {} bytes", path, size));
  }
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(fd->get(), bytes.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(errno, path);
    if (got == 0) break;  // became shorter meanwhile
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

Result<std::vector<std::byte>> read_file(const std::string& path, std::size_t max_bytes, FileKind kind) {
  std::size_t size = 0;
  auto fd = open_file(path, size, kind);
  if (!fd) return std::move(fd).error();
  // gzread passes plain files through unchanged, so one loop serves both.
  gzFile file = ::gzdopen(fd->get(), "rb");
  if (file == nullptr) return Error(Errc::system, path + ": no memory for zlib");
  fd->release();  // gzclose closes it
  ::gzbuffer(file, 1 << 18);
  std::vector<std::byte> bytes;
  constexpr std::size_t kChunk = 1 << 20;
  bytes.reserve(size + 1);
  for (;;) {
    const std::size_t have = bytes.size();
    bytes.resize(have + kChunk);
    const int got = ::gzread(file, bytes.data() + have, kChunk);
    if (got < 0) {
      int code = 0;
      const std::string why = ::gzerror(file, &code);
      const int system = errno;
      ::gzclose(file);
      if (code == Z_ERRNO) return file_error(system, path);
      return Error(Errc::malformed, fmt::format("{}: damaged gzip data ({})", path, why));
    }
    bytes.resize(have + static_cast<std::size_t>(got));
    if (bytes.size() > max_bytes) {
      ::gzclose(file);
      return Error(Errc::invalid_argument, fmt::format("{}: more than {} bytes", path, max_bytes));
    }
    if (got == 0) break;
  }
  // A stream that ends early is reported here (Z_BUF_ERROR), not by gzread.
  if (::gzclose(file) != Z_OK) return Error(Errc::malformed, path + ": the gzip data end too early");
  return bytes;
}

}  // namespace ddprun
