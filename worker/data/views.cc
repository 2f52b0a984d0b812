#include "worker/data/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/data/randperm.h"

namespace ddprun::data {
namespace {

class Concat final : public Dataset {
 public:
  explicit Concat(std::vector<std::unique_ptr<Dataset>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part->size());
  }

  std::int64_t size() const override { return ends_.back(); }
  const SampleSpec& spec() const override { return parts_.front()->spec(); }
  Result<void> read(const SampleKey& key, std::byte* input, std::byte* target) const override {
    const auto [part, index] = place_of(key.index);
    // The sample's own number goes into its augmentation: equal pictures of two files are not treated alike.
    return parts_[part]->read(SampleKey{key.seed + part, key.epoch, index}, input, target);
  }
  std::string name_of(std::int64_t index) const override {
    const auto [part, inside] = place_of(index);
    return parts_[part]->name_of(inside);
  }
  std::vector<std::string> left_out() const override {
    std::vector<std::string> all;
    for (const auto& part : parts_) {
      for (std::string& line : part->left_out()) all.push_back(std::move(line));
    }
    return all;
  }

 private:
  std::pair<std::size_t, std::int64_t> place_of(std::int64_t index) const {
    const auto part = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    return {part, index - (part == 0 ? 0 : ends_[part - 1])};
  }

  std::vector<std::unique_ptr<Dataset>> parts_;
  std::vector<std::int64_t> ends_;
};

class Subset final : public Dataset {
 public:
  Subset(std::unique_ptr<Dataset> whole, std::vector<std::int64_t> indices)
      : whole_(std::move(whole)), indices_(std::move(indices)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  const SampleSpec& spec() const override { return whole_->spec(); }
  Result<void> read(const SampleKey& key, std::byte* input, std::byte* target) const override {
    return whole_->read(SampleKey{key.seed, key.epoch, at(key.index)}, input, target);
  }
  std::string name_of(std::int64_t index) const override { return whole_->name_of(at(index)); }
  std::vector<std::string> left_out() const override { return whole_->left_out(); }

 private:
  std::int64_t at(std::int64_t index) const { return indices_[static_cast<std::size_t>(index)]; }

  std::unique_ptr<Dataset> whole_;
  std::vector<std::int64_t> indices_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> concat(std::vector<std::unique_ptr<Dataset>> parts) {
  const SampleSpec& first = parts.front()->spec();
  for (const auto& part : parts) {
    const SampleSpec& spec = part->spec();
    if (spec.input_shape == first.input_shape && spec.target_shape == first.target_shape &&
        spec.classes == first.classes && spec.class_names == first.class_names) {
      continue;
    }
    return Error(Errc::invalid_argument, fmt::format("{} does not look like {}: other shapes or classes",
                                                     part->name_of(0), parts.front()->name_of(0)));
  }
  if (parts.size() == 1) return std::move(parts.front());
  return std::unique_ptr<Dataset>(std::make_unique<Concat>(std::move(parts)));
}

Result<std::unique_ptr<Dataset>> split_off(std::unique_ptr<Dataset> dataset, double share, std::uint64_t seed,
                                           bool held_back) {
  const std::int64_t size = dataset->size();
  const auto back = static_cast<std::int64_t>(std::llround(share * static_cast<double>(size)));
  if (back < 1 || back >= size) {
    return Error(Errc::invalid_argument,
                 fmt::format("data.validation_share {} of {} samples leaves nothing for one of the two", share, size));
  }
  std::vector<std::int64_t> order = randperm(size, seed);
  std::vector<std::int64_t> mine(held_back ? order.end() - back : order.begin(),
                                 held_back ? order.end() : order.end() - back);
  std::sort(mine.begin(), mine.end());
  return std::unique_ptr<Dataset>(std::make_unique<Subset>(std::move(dataset), std::move(mine)));
}

}  // namespace ddprun::data
