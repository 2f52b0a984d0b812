#include <fmt/format.h>

#include "worker/data/formats.h"
#include "worker/data/sample_random.h"

namespace ddprun::data {
namespace {

// Inputs from a counter-based generator, the same on every machine. The label is the class whose share of the range
// holds the first input, so a model can learn it.
class SyntheticDataset final : public Dataset {
 public:
  explicit SyntheticDataset(const DatasetOptions& options) : size_(options.synthetic_samples) {
    spec_.classes = options.classes > 0 ? options.classes : 10;
    if (options.synthetic_shape.empty()) {
      spec_.input_shape = {options.sequence_length};
      spec_.input_type = ElementType::i32;
      spec_.target_shape = {options.sequence_length};
    } else {
      spec_.input_shape = options.synthetic_shape;
    }
    if (options.target == TargetKind::values) {
      spec_.classes = 0;
      spec_.target_type = ElementType::f32;
      spec_.target_shape = {1};
    }
  }

  std::int64_t size() const override { return size_; }
  const SampleSpec& spec() const override { return spec_; }

  Result<void> read(const SampleKey& key, std::byte* input, std::byte* target) const override {
    SampleRandom random(SampleKey{.seed = 0, .epoch = 0, .index = key.index});
    const std::int64_t count = spec_.input_count();
    if (spec_.input_type == ElementType::i32) {
      // A walk over the vocabulary: the next token follows from the last but for one draw in eight.
      auto* in = reinterpret_cast<std::int32_t*>(input);
      auto* out = reinterpret_cast<std::int32_t*>(target);
      std::int64_t token = random.below(spec_.classes);
      for (std::int64_t i = 0; i < count; ++i) {
        in[i] = static_cast<std::int32_t>(token);
        token = random.below(8) == 0 ? random.below(spec_.classes) : (token * 5 + 3) % spec_.classes;
        out[i] = static_cast<std::int32_t>(token);
      }
      return {};
    }
    auto* in = reinterpret_cast<float*>(input);
    const double first = random.uniform();
    for (std::int64_t i = 0; i < count; ++i) {
      // Two floats a draw: synthetic data must not be what a speed test measures.
      const std::uint64_t bits = random.next();
      in[i] = static_cast<float>(bits & 0xFFFFFF) * 0x1p-23F - 1.0F;
      if (++i < count) in[i] = static_cast<float>(bits >> 40) * 0x1p-23F - 1.0F;
    }
    in[0] = static_cast<float>(2 * first - 1);
    if (spec_.target_type == ElementType::f32) {
      *reinterpret_cast<float*>(target) = in[0];
    } else {
      *reinterpret_cast<std::int32_t*>(target) = static_cast<std::int32_t>(first * static_cast<double>(spec_.classes));
    }
    return {};
  }

  std::string name_of(std::int64_t index) const override { return fmt::format("synthetic sample {}", index); }

 private:
  std::int64_t size_;
  SampleSpec spec_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> open_synthetic(const DatasetOptions& options) {
  return std::unique_ptr<Dataset>(std::make_unique<SyntheticDataset>(options));
}

}  // namespace ddprun::data
