#include "worker/data/memory_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/data/sample_random.h"

namespace ddprun::data {
namespace {

// How many numbers normalising goes round: an image's channels, or, if as many are given, a table's columns.
std::int64_t channels_of(const std::vector<std::int64_t>& shape, std::size_t given) {
  if (shape.size() == 3) return shape[2];
  return shape.size() == 1 && static_cast<std::int64_t>(given) == shape[0] ? shape[0] : 1;
}

// A nan among the inputs turns the loss, and with it all parameters, into nan at some later step.
Result<void> all_finite(const MemorySamples& samples, std::size_t per_sample, bool targets_too) {
  for (std::size_t i = 0; i < samples.float_inputs.size(); ++i) {
    if (std::isfinite(samples.float_inputs[i])) continue;
    return Error(Errc::invalid_argument,
                 fmt::format("{}: value {} is {}; replace it, or leave the sample out",
                             samples.row_name(i / per_sample), i % per_sample, samples.float_inputs[i]));
  }
  const std::size_t per_target = samples.targets.size() / static_cast<std::size_t>(samples.count);
  for (std::size_t i = 0; targets_too && i < samples.targets.size(); ++i) {
    if (std::isfinite(samples.targets[i])) continue;
    return Error(Errc::invalid_argument, fmt::format("{}: the target is {}; replace it, or leave the sample out",
                                                     samples.row_name(i / per_target, true), samples.targets[i]));
  }
  return {};
}

class MemoryDataset final : public Dataset {
 public:
  MemoryDataset(MemorySamples samples, SampleSpec spec, const DatasetOptions& options)
      : samples_(std::move(samples)), spec_(std::move(spec)), options_(options) {
    const std::int64_t channels = channels_of(spec_.input_shape, options_.mean.size());
    mean_.assign(static_cast<std::size_t>(channels), 0.0F);
    std_.assign(mean_.size(), 1.0F);
    for (std::size_t c = 0; c < mean_.size() && !options_.mean.empty(); ++c) {
      const std::size_t from = options_.mean.size() == 1 ? 0 : c;
      mean_[c] = static_cast<float>(options_.mean[from]);
      std_[c] = static_cast<float>(options_.std[from]);
    }
    // The same roundings as torchvision's ToTensor and Normalize, so that losses can be compared with torch's.
    byte_values_.resize(mean_.size() * 256);
    for (std::size_t i = 0; i < byte_values_.size(); ++i) {
      byte_values_[i] = normalised(static_cast<float>(i % 256) / 255.0F, i / 256);
    }
  }

  std::int64_t size() const override { return samples_.count; }
  const SampleSpec& spec() const override { return spec_; }

  Result<void> read(const SampleKey& key, std::byte* input, std::byte* target) const override {
    const auto index = static_cast<std::size_t>(key.index);
    const auto count = static_cast<std::size_t>(spec_.input_count());
    auto* out = reinterpret_cast<float*>(input);
    if (options_.training && (options_.crop || options_.flip)) {
      augmented(key, out);
    } else if (samples_.byte_inputs.empty()) {
      convert(samples_.float_inputs.data() + index * count, count, out);
    } else {
      convert(samples_.byte_inputs.data() + index * count, count, out);
    }
    const auto target_count = static_cast<std::size_t>(spec_.target_count());
    const double* from = samples_.targets.data() + index * target_count;
    for (std::size_t i = 0; i < target_count; ++i) {
      if (spec_.target_type == ElementType::i32) {
        reinterpret_cast<std::int32_t*>(target)[i] = static_cast<std::int32_t>(from[i]);
      } else {
        reinterpret_cast<float*>(target)[i] = static_cast<float>(from[i]);
      }
    }
    return {};
  }

  std::string name_of(std::int64_t index) const override { return samples_.row_name(static_cast<std::size_t>(index)); }

 private:
  float normalised(float value, std::size_t channel) const { return (value - mean_[channel]) / std_[channel]; }

  void convert(const float* from, std::size_t count, float* out) const {
    if (options_.mean.empty()) {
      std::copy(from, from + count, out);
      return;
    }
    const std::size_t channels = mean_.size();
    for (std::size_t i = 0; i < count; ++i) out[i] = normalised(from[i], i % channels);
  }

  void convert(const std::uint8_t* from, std::size_t count, float* out) const {
    const std::size_t channels = mean_.size();
    for (std::size_t i = 0; i < count; i += channels) {
      for (std::size_t c = 0; c < channels; ++c) out[i + c] = byte_values_[c * 256 + from[i + c]];
    }
  }

  // The usual augmentation of small images: a window of the same size from the image with 4 zero pixels around it, and
  // a mirror image half of the time.
  void augmented(const SampleKey& key, float* out) const {
    SampleRandom random(key);
    const std::int64_t height = spec_.input_shape[0];
    const std::int64_t width = spec_.input_shape[1];
    const auto channels = static_cast<std::int64_t>(mean_.size());
    const std::int64_t top = options_.crop ? random.below(9) - 4 : 0;
    const std::int64_t left = options_.crop ? random.below(9) - 4 : 0;
    const bool mirror = options_.flip && (random.next() >> 63) != 0;
    const std::int64_t base = key.index * spec_.input_count();
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t sy = y + top;
        const std::int64_t sx = (mirror ? width - 1 - x : x) + left;
        const bool inside = sy >= 0 && sy < height && sx >= 0 && sx < width;
        for (std::int64_t c = 0; c < channels; ++c) {
          const auto channel = static_cast<std::size_t>(c);
          const auto at = static_cast<std::size_t>(base + (sy * width + sx) * channels + c);
          // The padding is black before normalising, as torchvision's RandomCrop on bytes has it.
          if (samples_.byte_inputs.empty()) {
            *out++ = normalised(inside ? samples_.float_inputs[at] : 0.0F, channel);
          } else {
            *out++ = byte_values_[channel * 256 + (inside ? samples_.byte_inputs[at] : 0)];
          }
        }
      }
    }
  }

  MemorySamples samples_;
  SampleSpec spec_;
  DatasetOptions options_;
  std::vector<float> mean_, std_;   // per channel
  std::vector<float> byte_values_;  // per channel: what each of the 256 bytes becomes
};

}  // namespace

std::string MemorySamples::row_name(std::size_t row, bool of_targets) const {
  const std::string* file = of_targets ? &target_name : &input_name;
  for (const auto& [path, first] : files) {
    if (static_cast<std::size_t>(first) <= row) file = &path;
  }
  if (rows_are_lines) return fmt::format("{}:{}", *file, lines[row]);
  return fmt::format("{} sample {}", *file, row);
}

Result<std::unique_ptr<Dataset>> make_memory_dataset(MemorySamples samples, const DatasetOptions& options) {
  SampleSpec spec;
  spec.input_shape = samples.input_shape;
  spec.target_shape = samples.target_shape;
  if (samples.count == 0) return Error(Errc::invalid_argument, samples.input_name + ": no samples");
  if (options.crop || options.flip) {
    if (samples.input_shape.size() != 3) {
      return Error(Errc::invalid_argument,
                   samples.input_name + ": data.augment needs images (height x width x channels)");
    }
  }
  const std::int64_t channels = channels_of(samples.input_shape, options.mean.size());
  if (!options.mean.empty() && options.mean.size() != 1 && static_cast<std::int64_t>(options.mean.size()) != channels) {
    const bool table = samples.input_shape.size() == 1;
    return Error(Errc::invalid_argument,
                 fmt::format("{}: data.normalize has {} numbers for {} {}", samples.input_name, options.mean.size(),
                             table ? samples.input_shape[0] : channels, table ? "columns of inputs" : "channels"));
  }
  auto finite = all_finite(samples, static_cast<std::size_t>(spec.input_count()), options.target == TargetKind::values);
  if (!finite) return std::move(finite).error();
  if (options.target == TargetKind::values) {
    spec.target_type = ElementType::f32;
  } else {
    spec.target_type = ElementType::i32;
    const std::int64_t per_sample = spec.target_count();
    double largest = -1;
    for (std::size_t i = 0; i < samples.targets.size(); ++i) {
      const double label = samples.targets[i];
      if (label == static_cast<double>(options.ignore_index)) continue;
      const bool whole = std::floor(label) == label && std::fabs(label) < 2147483648.0;
      if (!whole || label < 0 || (options.classes > 0 && label >= static_cast<double>(options.classes))) {
        const std::string where = samples.row_name(i / static_cast<std::size_t>(per_sample), true);
        return Error(Errc::invalid_argument, fmt::format("{}: label {} is not a class number from 0 to {}{}", where,
                                                         label, options.classes > 0 ? options.classes - 1 : 2147483647,
                                                         whole ? "" : "; for targets that are numbers use loss: mse"));
      }
      largest = std::max(largest, label);
    }
    if (largest < 0) {
      return Error(Errc::invalid_argument,
                   fmt::format("{}: every label is loss.ignore_index {}", samples.target_name, options.ignore_index));
    }
    spec.class_names = samples.class_names;
    const std::int64_t named = static_cast<std::int64_t>(spec.class_names.size());
    spec.classes = options.classes > 0 ? options.classes : named > 0 ? named : static_cast<std::int64_t>(largest) + 1;
  }
  return std::unique_ptr<Dataset>(std::make_unique<MemoryDataset>(std::move(samples), std::move(spec), options));
}

}  // namespace ddprun::data
