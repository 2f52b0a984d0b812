#include <fmt/format.h>

#include <cstring>

#include "worker/base/file_bytes.h"
#include "worker/data/formats.h"
#include "worker/data/memory_dataset.h"

namespace ddprun::data {
namespace {

struct IdxArray {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> values;
};

// IDX: two zero bytes, element type (0x08 = u8), number of dimensions, that many big-endian u32 sizes, the data.
Result<IdxArray> read_idx(const std::string& path) {
  auto bytes = read_file(path, std::size_t{16} << 30);
  if (!bytes) return std::move(bytes).error();
  const auto* p = reinterpret_cast<const std::uint8_t*>(bytes->data());
  if (bytes->size() < 4 || p[0] != 0 || p[1] != 0) return Error(Errc::malformed, path + ": not an IDX file");
  if (p[2] != 0x08) {
    return Error(Errc::malformed, fmt::format("{}: element type 0x{:02x}; only u8 (0x08) is read", path, p[2]));
  }
  const std::size_t dimensions = p[3];
  const std::size_t header = 4 + 4 * dimensions;
  if (dimensions == 0 || dimensions > 4 || bytes->size() < header) {
    return Error(Errc::malformed, fmt::format("{}: {} dimensions do not fit the file", path, dimensions));
  }
  IdxArray array;
  std::size_t count = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::uint8_t* s = p + 4 + 4 * d;
    const std::size_t size = (std::size_t{s[0]} << 24) | (std::size_t{s[1]} << 16) | (std::size_t{s[2]} << 8) | s[3];
    array.shape.push_back(static_cast<std::int64_t>(size));
    if (size != 0 && count > (std::size_t{1} << 40) / size) return Error(Errc::malformed, path + ": sizes too large");
    count *= size;
  }
  if (bytes->size() - header != count) {
    return Error(Errc::malformed,
                 fmt::format("{}: {} bytes of data, {} expected by its header", path, bytes->size() - header, count));
  }
  array.values.assign(p + header, p + header + count);
  return array;
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_idx(const DatasetOptions& options) {
  if (options.paths.targets.empty() && !options.unlabeled) {
    return Error(Errc::invalid_argument,
                 options.paths.inputs + ": idx data are two files: {inputs: IMAGES, targets: LABELS}");
  }
  auto images = read_idx(options.paths.inputs);
  if (!images) return std::move(images).error();
  Result<IdxArray> labels = IdxArray();
  if (options.unlabeled) {
    labels->shape = {images->shape.at(0)};
    labels->values.assign(static_cast<std::size_t>(images->shape[0]), 0);
  } else {
    labels = read_idx(options.paths.targets);
  }
  if (!labels) return std::move(labels).error();
  if (images->shape.size() < 2) return Error(Errc::malformed, options.paths.inputs + ": labels, not images");
  if (labels->shape.size() != 1) return Error(Errc::malformed, options.paths.targets + ": not a list of labels");
  if (images->shape[0] != labels->shape[0]) {
    return Error(Errc::invalid_argument, fmt::format("{} has {} images, but {} has {} labels", options.paths.inputs,
                                                     images->shape[0], options.paths.targets, labels->shape[0]));
  }
  MemorySamples samples;
  samples.input_name = options.paths.inputs;
  samples.target_name = options.paths.targets;
  samples.count = images->shape[0];
  samples.input_shape.assign(images->shape.begin() + 1, images->shape.end());
  if (samples.input_shape.size() == 2) samples.input_shape.push_back(1);  // one channel
  samples.byte_inputs = std::move(images->values);
  samples.targets.assign(labels->values.begin(), labels->values.end());
  if (options.target == TargetKind::values) samples.target_shape = {1};
  return make_memory_dataset(std::move(samples), options);
}

}  // namespace ddprun::data
