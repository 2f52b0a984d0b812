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
  std::vector<std::int64_t> input_shape;
  std::vector<float> float_inputs;  // one of these two is used
  std::vector<std::uint8_t> byte_inputs;
  std::vector<std::int64_t> target_shape;
  std::vector<double> targets;
  std::int64_t count = 0;
};

// Checks that counts agree, that class targets are whole numbers in 0..classes-1 and that augmentation fits the shape.
Result<std::unique_ptr<Dataset>> make_memory_dataset(MemorySamples samples, const DatasetOptions& options);

}  // namespace ddprun::data
