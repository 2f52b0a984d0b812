#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <span>
#include <string>

#include "common/result.h"

// Small things that a program asks of its host, each in one place.
namespace ddprun {

std::string host_name();        // as the kernel has it; "localhost" when it has none
std::string short_host_name();  // up to the first dot

// From getrandom(): good enough for keys.
void fill_random(std::span<unsigned char> bytes);
std::string random_hex(std::size_t bytes);  // two digits a byte

// For /proc, /sys and the like, whose sizes are not known before: all there is, "" when it cannot be read.
std::string read_small_file(const std::string& path);

// A file is replaced whole or not at all: its text is written beside it, then renamed. What is not renamed goes away
// with the object. Errors: system with the path ("cannot write /x: No space left on device").
class FileBeside {
 public:
  static Result<FileBeside> write(const std::string& path, const std::string& text);
  ~FileBeside();
  FileBeside(FileBeside&& other) noexcept;
  FileBeside& operator=(FileBeside&&) = delete;

  Result<void> replace(const std::string& target) const;
  const std::string& path() const { return path_; }
  const struct stat& status() const { return status_; }  // its time is by the clock of its file system

 private:
  FileBeside(std::string path, const struct stat& status) : path_(std::move(path)), status_(status) {}

  std::string path_;
  struct stat status_;
};

}  // namespace ddprun
