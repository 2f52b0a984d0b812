#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"

namespace ddprun::data {

enum class ElementType : std::uint8_t { f32, i32 };
inline std::size_t size_of(ElementType) { return 4; }

// What one sample looks like. Images are height x width x channels.
struct SampleSpec {
  std::vector<std::int64_t> input_shape;
  ElementType input_type = ElementType::f32;
  std::vector<std::int64_t> target_shape;  // empty: one number
  ElementType target_type = ElementType::i32;
  std::int64_t classes = 0;              // class indices run from 0 to this - 1; 0: the targets are values, not classes
  std::vector<std::string> class_names;  // by index, sorted, where the data have them (image_folder)

  std::int64_t input_count() const;
  std::int64_t target_count() const;
  std::size_t input_bytes() const { return static_cast<std::size_t>(input_count()) * size_of(input_type); }
  std::size_t target_bytes() const { return static_cast<std::size_t>(target_count()) * size_of(target_type); }
};

// What a sample's augmentation may depend on. Never the thread that makes it, so results do not depend on num_workers.
struct SampleKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;
};

// Samples by number. Safe to read from many threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual const SampleSpec& spec() const = 0;
  // Writes sample `key.index` to `input` (spec().input_bytes()) and `target` (spec().target_bytes()).
  // Errors name the sample: its file, or file and row.
  virtual Result<void> read(const SampleKey& key, std::byte* input, std::byte* target) const = 0;
  // "train.csv:17" or the image's path.
  virtual std::string name_of(std::int64_t index) const = 0;
  // What lies with the data and is no sample though it might be meant as one; a line each, with the path.
  virtual std::vector<std::string> left_out() const { return {}; }
};

// Where the files are; `targets` is empty where one file or folder holds both.
struct DataPaths {
  std::string inputs;
  std::string targets;
  std::vector<std::string> more = {};  // csv, tokens: further files of inputs, in this order
  bool empty() const { return inputs.empty(); }
};

enum class TargetKind : std::uint8_t { classes, values };

struct DatasetOptions {
  std::string format;  // csv, idx, npy, image_folder, tokens, synthetic
  DataPaths paths;
  TargetKind target = TargetKind::classes;
  std::int64_t classes = 0;              // of the model; 0: take what the data have
  std::int64_t ignore_index = -100;      // this label is no class and legal: the loss leaves it out
  bool training = true;                  // augment; else center crop only
  std::string target_column;             // csv: name or number from 1; empty: the last
  std::vector<std::string> columns;      // csv: those that are inputs; empty: all but the target
  std::vector<std::string> class_names;  // csv: of the training data, where its targets are words
  std::vector<double> mean, std;         // per channel, after scaling bytes to 0..1; empty: none
  bool crop = false, flip = false;       // augment: random crop, horizontal flip
  bool unlabeled = false;                // inputs alone, for answers; every target reads as 0
  std::int64_t inputs = 0;              // unlabeled csv: numbers of a sample; one more column, the target, is passed by
  std::vector<std::string> files = {};  // unlabeled image_folder: the pictures, wherever they lie
  std::int64_t image_size = 224;
  std::int64_t sequence_length = 1024;
  std::int64_t synthetic_samples = 1024;
  std::vector<std::int64_t> synthetic_shape;  // of one input; empty: tokens of sequence_length
};

// Of a kind that image_folder reads.
bool is_image_name(const std::filesystem::path& path);

// Opens and checks: sizes, shapes, and for data in memory every label against `classes`.
Result<std::unique_ptr<Dataset>> open_dataset(const DatasetOptions& options);

}  // namespace ddprun::data
