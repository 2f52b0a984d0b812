#include <algorithm>
#include <cmath>

#include "worker/data/image.h"
#include "worker/data/sample_random.h"

namespace ddprun::data {
namespace {

// Four floats that the compiler keeps in one register.
typedef float Float4 __attribute__((vector_size(16)));

// For each output position the first input pixel and the weights, which sum to 1.
struct Taps {
  std::vector<std::int32_t> first, count;
  std::vector<std::size_t> at;  // into weights
  std::vector<float> weights;
};

Taps make_taps(double begin, double length, bool hard_edges, std::int64_t out, std::int64_t in) {
  Taps taps;
  const double scale = length / static_cast<double>(out);
  const double support = std::max(scale, 1.0);
  for (std::int64_t i = 0; i < out; ++i) {
    const double center = begin + (static_cast<double>(i) + 0.5) * scale;
    // With hard edges only pixels of the box count, as if it had been cut out first.
    const double lowest = hard_edges ? std::floor(begin + 0.5) : 0;
    const double highest = hard_edges ? std::ceil(begin + length - 0.5) : static_cast<double>(in);
    const auto low = static_cast<std::int64_t>(std::max({0.0, lowest, std::floor(center - support + 0.5)}));
    const auto high =
        static_cast<std::int64_t>(std::min({static_cast<double>(in), highest, std::floor(center + support + 0.5)}));
    const std::int64_t first = std::clamp<std::int64_t>(low, 0, in - 1);
    const std::int64_t count = std::max<std::int64_t>(1, high - first);
    taps.first.push_back(static_cast<std::int32_t>(first));
    taps.count.push_back(static_cast<std::int32_t>(count));
    taps.at.push_back(taps.weights.size());
    double sum = 0;
    for (std::int64_t k = 0; k < count; ++k) {
      const double distance = std::fabs((static_cast<double>(first + k) + 0.5 - center) / support);
      const double weight = std::max(0.0, 1.0 - distance);
      taps.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    if (sum <= 0) {
      taps.weights[taps.at.back()] = 1;
      sum = 1;
    }
    for (std::int64_t k = 0; k < count; ++k) {
      float& weight = taps.weights[taps.at.back() + static_cast<std::size_t>(k)];
      weight = static_cast<float>(weight / sum);
    }
  }
  return taps;
}

}  // namespace

void resize_normalise(const Pixels& pixels, std::int64_t size, bool mirror, std::span<const float, 3> mean,
                      std::span<const float, 3> std, float* out) {
  const Taps down = make_taps(pixels.box.y, pixels.box.height, pixels.box.hard_edges, size, pixels.height);
  const Taps across = make_taps(pixels.box.x, pixels.box.width, pixels.box.hard_edges, size, pixels.width);
  const Float4 factor = {1.0F / (255.0F * std[0]), 1.0F / (255.0F * std[1]), 1.0F / (255.0F * std[2]), 0};
  const Float4 shift = {-mean[0] / std[0], -mean[1] / std[1], -mean[2] / std[2], 0};
  const auto row_values = static_cast<std::size_t>(pixels.width) * 4;
  std::vector<float> row(row_values);
  for (std::int64_t y = 0; y < size; ++y) {
    // Down first: whole rows, which the compiler turns into vector code.
    const auto i = static_cast<std::size_t>(y);
    const std::uint8_t* from = pixels.rgbx.data() + static_cast<std::size_t>(down.first[i]) * row_values;
    const float* weights = down.weights.data() + down.at[i];
    const float first = weights[0];
    for (std::size_t x = 0; x < row_values; ++x) row[x] = first * static_cast<float>(from[x]);
    for (std::int32_t k = 1; k < down.count[i]; ++k) {
      from += row_values;
      const float weight = weights[k];
      for (std::size_t x = 0; x < row_values; ++x) row[x] += weight * static_cast<float>(from[x]);
    }
    float* line = out + y * size * 3;
    for (std::int64_t x = 0; x < size; ++x) {
      const auto j = static_cast<std::size_t>(x);
      const float* pixel = row.data() + static_cast<std::size_t>(across.first[j]) * 4;
      const float* w = across.weights.data() + across.at[j];
      Float4 sum = {0, 0, 0, 0};
      for (std::int32_t k = 0; k < across.count[j]; ++k, pixel += 4) {
        const Float4 value = {pixel[0], pixel[1], pixel[2], pixel[3]};
        sum += w[k] * value;
      }
      sum = sum * factor + shift;
      float* to = line + (mirror ? size - 1 - x : x) * 3;
      to[0] = sum[0];
      to[1] = sum[1];
      to[2] = sum[2];
    }
  }
}

Box center_box(std::int64_t width, std::int64_t height, std::int64_t size) {
  // Resize() makes the shorter side round(size * 256 / 224), the other one truncated as torchvision does.
  const auto shorter = static_cast<double>(std::llround(static_cast<double>(size) * 256 / 224));
  const bool wide = width >= height;
  const double longer =
      std::floor(shorter * static_cast<double>(wide ? width : height) / static_cast<double>(wide ? height : width));
  const double resized_width = wide ? longer : shorter;
  const double resized_height = wide ? shorter : longer;
  const double x = std::nearbyint((resized_width - static_cast<double>(size)) / 2);
  const double y = std::nearbyint((resized_height - static_cast<double>(size)) / 2);
  const double per_x = static_cast<double>(width) / resized_width;
  const double per_y = static_cast<double>(height) / resized_height;
  const auto side = static_cast<double>(size);
  return Box{x * per_x, y * per_y, side * per_x, side * per_y, false};
}

Box random_box(std::int64_t width, std::int64_t height, SampleRandom& random) {
  const auto w = static_cast<double>(width);
  const auto h = static_cast<double>(height);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = w * h * random.uniform(0.08, 1.0);
    const double ratio = std::exp(random.uniform(std::log(3.0 / 4.0), std::log(4.0 / 3.0)));
    const std::int64_t box_width = std::llround(std::sqrt(area * ratio));
    const std::int64_t box_height = std::llround(std::sqrt(area / ratio));
    if (box_width < 1 || box_height < 1 || box_width > width || box_height > height) continue;
    const auto y = static_cast<double>(random.below(height - box_height + 1));
    const auto x = static_cast<double>(random.below(width - box_width + 1));
    return Box{x, y, static_cast<double>(box_width), static_cast<double>(box_height), true};
  }
  // Too long or too tall: the middle, with the nearest allowed shape.
  double box_width = w;
  double box_height = h;
  if (w / h < 3.0 / 4.0) box_height = std::min(h, std::round(w / (3.0 / 4.0)));
  if (w / h > 4.0 / 3.0) box_width = std::min(w, std::round(h * (4.0 / 3.0)));
  return Box{std::floor((w - box_width) / 2), std::floor((h - box_height) / 2), box_width, box_height, true};
}

}  // namespace ddprun::data
