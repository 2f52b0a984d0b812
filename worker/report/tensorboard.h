#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "worker/report/metrics.h"

namespace ddprun::trainer {

// Event files that TensorBoard reads. Format: TFRecord frames (u64 length, masked CRC-32C of it, data, masked CRC-32C
// of the data), each one Event message in protobuf encoding.
std::string tfrecord(std::string_view data);
std::string scalar_event(double wall_time_s, std::int64_t step, std::string_view tag, double value);

class TensorBoardWriter {
 public:
  // A new file in `folder`. start_step > 0 marks a restart, so that TensorBoard drops what an earlier run had written
  // beyond it.
  static Result<TensorBoardWriter> open(const std::string& folder, std::int64_t start_step);

  // Written at once: a kill loses nothing, and a display is up to date. A failed write is said once and the rest is
  // dropped.
  void scalar(std::string_view tag, std::int64_t step, double value);

 private:
  explicit TensorBoardWriter(LineFile file) : file_(std::move(file)) {}
  void write(const std::string& records);
  LineFile file_;
  bool failed_ = false;
};

}  // namespace ddprun::trainer
