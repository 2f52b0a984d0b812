#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/data/dataset.h"

namespace ddprun::data {

// Samples that lie in memory: what csv, idx and npy become. Inputs are floats, or bytes that read() scales to 0..1.
struct MemorySamples {
  std::string input_name, target_name;  // for messages
  bool rows_are_lines = false;          // csv: name_of() is "file:line"
  std::vector<std::int64_t> lines;      // line numbers of the rows, if rows_are_lines
  // The files that the rows are from, each with its first row; empty: all from input_name.
  std::vector<std::pair<std::string, std::int64_t>> files;
  std::vector<std::string> class_names;  // where the targets are words
  std::vector<std::int64_t> input_shape;
  std::vector<float> float_inputs;  // one of these two is used
  std::vector<std::uint8_t> byte_inputs;
  std::vector<std::int64_t> target_shape;
  std::vector<double> targets;
  std::int64_t count = 0;

  // "train.csv:17" or "x.npy sample 3".
  std::string row_name(std::size_t row, bool of_targets = false) const;
};

// Checks that counts agree, that class targets are whole numbers in 0..classes-1 and that augmentation fits the shape.
Result<std::unique_ptr<Dataset>> make_memory_dataset(MemorySamples samples, const DatasetOptions& options);

}  // namespace ddprun::data
