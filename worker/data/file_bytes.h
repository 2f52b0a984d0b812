#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace ddprun::data {

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

// The whole file; a gzip one (by its first two bytes) is inflated. Errors: not_found, malformed (damaged gzip), and
// invalid_argument when more than `max_bytes` would come out.
Result<std::vector<std::byte>> read_file(const std::string& path, std::size_t max_bytes);

}  // namespace ddprun::data
