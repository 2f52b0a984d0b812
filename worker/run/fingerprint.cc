#include "worker/run/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "worker/base/crc32c.h"

namespace ddprun::trainer {
namespace {

std::uint32_t crc_of(const std::string& text, std::uint32_t crc) { return crc32c(std::as_bytes(std::span(text)), crc); }

// "cat/12.png": hosts may keep the pictures in different places.
std::uint32_t crc_of_names(const data::Dataset& dataset) {
  std::uint32_t crc = 0;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    const std::filesystem::path path = dataset.name_of(i);
    crc = crc_of(path.parent_path().filename().string() + "/" + path.filename().string() + "\n", crc);
  }
  return crc;
}

std::uint32_t crc_of_samples(const data::Dataset& dataset, std::uint64_t seed) {
  std::vector<std::byte> input(dataset.spec().input_bytes()), target(dataset.spec().target_bytes());
  std::uint32_t crc = 0;
  for (const std::int64_t index : {std::int64_t{0}, dataset.size() / 2, dataset.size() - 1}) {
    // A sample that cannot be read is the training's matter.
    if (!dataset.read(data::SampleKey{seed, 0, index}, input.data(), target.data())) continue;
    crc = crc32c(target, crc32c(input, crc));
  }
  return crc;
}

}  // namespace

std::string fingerprint(const data::Dataset& dataset, const std::string& format, std::uint64_t seed) {
  const data::SampleSpec& spec = dataset.spec();
  std::string text = fmt::format("{}, inputs [{}], targets [{}], {} classes", format, fmt::join(spec.input_shape, ", "),
                                 fmt::join(spec.target_shape, ", "), spec.classes);
  if (format == "image_folder") return text + fmt::format(", names {:08x}", crc_of_names(dataset));
  return dataset.size() > 0 ? text + fmt::format(", content {:08x}", crc_of_samples(dataset, seed)) : text;
}

}  // namespace ddprun::trainer
