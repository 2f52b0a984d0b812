#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

// What a run writes beside checkpoints: one JSON line a step, and which samples each rank used.
namespace ddprun::trainer {

struct StepMetrics {
  std::int64_t step = 0;   // from 1
  std::int64_t epoch = 1;  // from 1, as in the log
  double loss = 0;         // mean over all samples of the step on all ranks
  double lr = 0;
  double scale = 1;  // of the loss; the value the step was made with
  bool skipped = false;
  double grad_norm = 0;      // of all gradients, before clipping
  double samples_per_s = 0;  // over all ranks
  double tokens_per_s = 0;   // 0: not a language model
};

std::string to_json_line(const StepMetrics& metrics);  // with '\n'; a loss that is not finite becomes null

// A file that grows by whole lines, each with one write(): a killed run leaves what it had written.
class LineFile {
 public:
  // Makes the folder that it lies in. keep_bytes: cut the file to this size; -1: keep all. Errors: invalid_argument
  // when it may not be written, else system.
  static Result<LineFile> open(const std::string& path, std::int64_t keep_bytes);
  // The same for a file that only one process may have, as long as it has it: lines of two runs in one file could not
  // be told apart. What another has is not cut. Errors: also invalid_argument when another still has it after 2 s (a
  // run that was killed may take a moment to end). File systems without locks, pipes and devices are not guarded.
  static Result<LineFile> open_alone(const std::string& path, std::int64_t keep_bytes);
  Result<void> append(const std::string& lines);
  std::int64_t size_bytes() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  static Result<LineFile> open_as(const std::string& path, std::int64_t keep_bytes, bool alone);
  LineFile(std::string path, UniqueFd fd, std::int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}
  std::string path_;
  UniqueFd fd_;
  std::int64_t size_ = 0;
};

// Could `path` be written? Makes the folder that it lies in, but not the file. Errors as of LineFile::open().
Result<void> check_writable(const std::string& path);

// How many bytes of a metrics file belong to steps up to `step`: whole lines only. A missing file: 0. validated: the
// validation of that step is known to the checkpoint; else its line goes, since it will be written again.
Result<std::int64_t> metrics_bytes_up_to(const std::string& path, std::int64_t step, bool validated = true);

}  // namespace ddprun::trainer
