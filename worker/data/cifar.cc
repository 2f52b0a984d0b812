#include <fmt/format.h>

#include "worker/base/file_bytes.h"
#include "worker/data/formats.h"
#include "worker/data/memory_dataset.h"

namespace ddprun::data {
namespace {

constexpr std::int64_t kSide = 32, kPixels = kSide * kSide, kImage = 3 * kPixels;

// A record: one byte of label (CIFAR-10) or two, coarse and fine (CIFAR-100: the fine one counts), then the red, green
// and blue plane.
Result<void> add_file(const std::string& path, std::int64_t& label_bytes, MemorySamples& samples) {
  auto bytes = read_file(path, std::size_t{16} << 30);
  if (!bytes) return std::move(bytes).error();
  const auto size = static_cast<std::int64_t>(bytes->size());
  if (label_bytes == 0) label_bytes = size % (kImage + 1) == 0 ? 1 : 2;
  const std::int64_t record = kImage + label_bytes;
  if (size == 0 || size % record != 0) {
    return Error(Errc::malformed,
                 fmt::format("{}: {} bytes are no whole number of CIFAR's records of {} (CIFAR-10) or {} (CIFAR-100) "
                             "bytes; the *.bin files of the \"binary version\" are read",
                             path, size, kImage + 1, kImage + 2));
  }
  samples.files.push_back({path, samples.count});
  const auto* at = reinterpret_cast<const std::uint8_t*>(bytes->data());
  for (std::int64_t i = 0; i < size / record; ++i, at += record) {
    samples.targets.push_back(at[label_bytes - 1]);
    const std::uint8_t* planes = at + label_bytes;
    for (std::int64_t p = 0; p < kPixels; ++p) {
      for (std::int64_t c = 0; c < 3; ++c) samples.byte_inputs.push_back(planes[c * kPixels + p]);
    }
    ++samples.count;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_cifar(const DatasetOptions& options) {
  MemorySamples samples;
  samples.input_name = samples.target_name = options.paths.inputs;
  samples.input_shape = {kSide, kSide, 3};
  std::int64_t label_bytes = 0;
  auto done = add_file(options.paths.inputs, label_bytes, samples);
  for (const std::string& path : options.paths.more) {
    if (done) done = add_file(path, label_bytes, samples);
  }
  if (!done) return std::move(done).error();
  if (options.target == TargetKind::values) samples.target_shape = {1};
  return make_memory_dataset(std::move(samples), options);
}

}  // namespace ddprun::data
