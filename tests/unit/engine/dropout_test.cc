#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/kernels/kernels.h"

namespace ddprun::engine {
namespace {

// Within five standard deviations of what independent draws give.
TEST(Dropout, KeepsItsShareAndEveryPartOfTheKeyMatters) {
  auto kernels = make_cpu_kernels().value();
  constexpr std::int64_t kCount = 1 << 20;
  const std::vector<float> ones(kCount, 1.0f);
  auto near = [&](double seen, double probability, const char* what) {
    const double spread = 5 * std::sqrt(kCount * probability * (1 - probability));
    EXPECT_NEAR(seen, kCount * probability, spread) << what;
  };
  for (double p : {0.0, 0.1, 0.5}) {
    auto masked = [&](const RandomKey& key) {
      std::vector<float> y(kCount);
      kernels->dropout(kCount, p, key, ones.data(), y.data());
      for (float v : y) EXPECT_TRUE(v == 0.0f || std::abs(v - 1 / (1 - p)) < 1e-6);
      return y;
    };
    const RandomKey key{.seed = 7, .step = 3, .stream = 1, .op = 9};
    const std::vector<float> base = masked(key);
    near(static_cast<double>(kCount - std::count(base.begin(), base.end(), 0.0f)), 1 - p, "kept");
    auto both = [&](const std::vector<float>& a, const std::vector<float>& b, std::size_t shift) {
      double n = 0;
      for (std::size_t i = 0; i < a.size(); ++i) n += a[i] != 0.0f && b[(i + shift) % b.size()] != 0.0f ? 1 : 0;
      return n;
    };
    const double independent = (1 - p) * (1 - p);
    for (std::size_t shift : {1u, 2u, 4u, 5u}) near(both(base, base, shift), independent, "neighbours");
    RandomKey seed = key, step = key, stream = key, op = key;
    ++seed.seed, ++step.step, ++stream.stream, ++op.op;
    near(both(base, masked(seed), 0), independent, "another seed");
    near(both(base, masked(step), 0), independent, "another step");
    near(both(base, masked(stream), 0), independent, "another rank or micro-batch");
    near(both(base, masked(op), 0), independent, "another op");
    EXPECT_EQ(masked(key), base);
  }
}

}  // namespace
}  // namespace ddprun::engine
