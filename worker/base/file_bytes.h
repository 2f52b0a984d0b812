#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace ddprun {

// A file mapped read-only for as long as this lives.
class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const std::byte* data, std::size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const std::byte* data_;
  std::size_t size_;
};

// "what: Permission denied". What trying again cannot mend (permission, a folder where a file should be, a read-only
// file system) is invalid_argument; all else as Error::from_errno().
Error file_error(int error_number, const std::string& what);

// Errors of all that open files here: those of file_error(); invalid_argument for a folder, a pipe or a device.
enum class FileKind : std::uint8_t {
  regular,
  any,  // also a pipe, e.g. from <(command)
};

// The whole file by read(), so that a disk's error is an error here and not a signal.
Result<std::vector<std::byte>> read_whole(const std::string& path);

// The whole file; a gzip one (by its first two bytes) is inflated. Errors also: malformed (damaged gzip), and
// invalid_argument when more than `max_bytes` would come out.
Result<std::vector<std::byte>> read_file(const std::string& path, std::size_t max_bytes,
                                         FileKind kind = FileKind::regular);

}  // namespace ddprun
