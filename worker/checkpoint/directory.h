#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

// A folder of checkpoints. Each is a folder "step-000000123" with its files and a list of their checksums. A name that
// does not start with a dot is complete and on the disk:
//   write to ".writing-step-N" -> fsync files and folder -> rename -> fsync parent -> "latest" link -> drop old ones.
// A kill at any moment leaves the checkpoints before untouched and at most one hidden folder, which the next start
// removes.
namespace ddprun::checkpoint {

// Content of one file, in pieces that are written one after the other.
struct FileContent {
  std::string name;
  std::vector<std::span<const std::byte>> pieces;
};

inline constexpr const char* kChecksumFile = "checksums";
inline constexpr const char* kBestLink = "best";

std::string folder_name(std::int64_t step);                           // "step-000000123"
std::optional<std::int64_t> step_of_folder(const std::string& name);  // nullopt: not a checkpoint's name

// Steps of the complete checkpoints in a folder, ascending. Says nothing about damage.
Result<std::vector<std::int64_t>> steps_in(const std::string& path);

class CheckpointDirectory {
 public:
  // Makes the folder if needed and locks it against a second run. Errors: invalid_argument when it cannot be written
  // to; system; refused when another process holds it (after waiting 10 s for one that is just ending).
  static Result<CheckpointDirectory> open(const std::string& path);

  Result<std::vector<std::int64_t>> steps() const { return steps_in(path_); }
  std::string path_of(std::int64_t step) const;
  const std::string& path() const { return path_; }

  // Writes one checkpoint as above. An error leaves all others as they were and removes what was begun.
  Result<void> write(std::int64_t step, const std::vector<FileContent>& files) const;
  // "latest" is no link: somebody copied the folder with a tool that follows links. The next write() makes it one again
  // and keeps the copy as "latest-before-step-N".
  bool latest_is_a_folder() const;
  // The link "best" to this step's checkpoint, which prune() then keeps.
  Result<void> mark_best(std::int64_t step) const;
  // Removes all but the `keep` newest, the one that "best" links to, and hidden remains of killed writers.
  void prune(std::int64_t keep) const;
  // Renames a damaged checkpoint to "damaged-step-N", so that its name is free again and it can be looked at.
  Result<void> set_aside(std::int64_t step) const;

 private:
  CheckpointDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
};

// The files of a checkpoint's folder by name, each compared with the list of checksums. Errors name the file: malformed
// or not_found for damage; all others (no permission, no memory, a disk that does not answer) say nothing about it.
using CheckpointFiles = std::map<std::string, std::vector<std::byte>>;
Result<CheckpointFiles> read_checkpoint(const std::string& folder);

}  // namespace ddprun::checkpoint
