// Central differences in double through whole models: the engine's gradients are the loss's derivatives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/unit/engine/engine_support.h"

namespace ddprun::engine::testing {
namespace {

class Gradients : public ::testing::TestWithParam<ModelCase> {};

TEST_P(Gradients, AreDirectionalDerivativesOfTheLoss) {
  Trial trial(GetParam(), make_reference_kernels());
  if (GetParam().loss.ignore_index >= 0) {  // some targets are passed over, and some are not
    const auto ignored = std::count(trial.target_ids.begin(), trial.target_ids.end(), GetParam().loss.ignore_index);
    EXPECT_GT(ignored, 0);
    EXPECT_LT(ignored, static_cast<std::ptrdiff_t>(trial.target_ids.size()));
  }
  trial.forward();
  trial.backward();
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  // Masters are f64 on this backend: a step of 1e-7 leaves nine digits of the difference. max_pool and relu have kinks;
  // a direction that crosses one within the step would differ grossly, which does not happen with these seeds.
  constexpr double kStep = 1e-7;
  for (int direction = 0; direction < 20; ++direction) {
    std::vector<std::vector<double>> move;
    double expected = 0;
    auto shift = [&](double by) {
      std::size_t i = 0;
      for (const Parameter& p : trial.store->parameters()) {
        if (!p.trainable) continue;
        for (std::size_t k = 0; k < p.count(); ++k) static_cast<double*>(p.data)[k] += by * move[i][k];
        ++i;
      }
    };
    for (const Parameter& p : trial.store->parameters()) {
      if (!p.trainable) continue;
      move.emplace_back(p.count());
      for (std::size_t k = 0; k < p.count(); ++k) {
        move.back()[k] = normal(random) * 0.1;
        expected += move.back()[k] * static_cast<const double*>(p.gradient)[k];
      }
    }
    shift(kStep);
    const double above = trial.forward();
    shift(-2 * kStep);
    const double below = trial.forward();
    shift(kStep);
    const double measured = (above - below) / (2 * kStep);
    EXPECT_NEAR(measured, expected, 1e-7 * std::max(1.0, std::abs(expected))) << "direction " << direction;
  }
}

TEST_P(Gradients, AddUpOverMicroBatchesAndScaleWithTheLoss) {
  Trial trial(GetParam(), make_reference_kernels());
  trial.forward();
  trial.backward();
  std::vector<std::vector<float>> once;
  for (const Parameter& p : trial.store->parameters()) {
    if (p.trainable) once.push_back(trial.store->read_gradient_f32(p.id));
  }
  trial.forward();
  trial.backward({.loss_scale = 0.25});
  trial.forward();
  trial.backward({.loss_scale = 0.75, .accumulate = true});
  std::size_t i = 0;
  for (const Parameter& p : trial.store->parameters()) {
    if (!p.trainable) continue;
    const std::vector<float> twice = trial.store->read_gradient_f32(p.id);
    for (std::size_t k = 0; k < twice.size(); ++k) ASSERT_NEAR(once[i][k], twice[k], 1e-6) << p.name;
    ++i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Gradients, ::testing::ValuesIn(small_models()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddprun::engine::testing
