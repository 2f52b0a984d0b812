#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/engine/engine_support.h"
#include "worker/optim/clip.h"
#include "worker/optim/grad_scaler.h"
#include "worker/optim/optimizer.h"
#include "worker/optim/schedule.h"

namespace ddprun::optim {
namespace {

// torch 2.15: SequentialLR(LinearLR(0.1, 4), CosineAnnealingLR(T = 8)), lr 1.
TEST(Schedule, WarmUpThenCosineEqualsTorch) {
  const Schedule s{.kind = ScheduleKind::cosine, .lr = 1, .warmup_steps = 4, .warmup_factor = 0.1, .total_steps = 12};
  const double expected[] = {.1, .325, .55, .775, 1, .96194, .85355, .69134, .5, .30866, .14645, .03806};
  for (int t = 0; t < 12; ++t) EXPECT_NEAR(s.at(t), expected[t], 5e-6) << t;
  EXPECT_NEAR(s.at(1000), 0, 1e-12);
}

TEST(Schedule, OthersFollowTheirFormulas) {
  EXPECT_DOUBLE_EQ((Schedule{.kind = ScheduleKind::constant, .lr = 0.3}.at(77)), 0.3);
  const Schedule step{.kind = ScheduleKind::step, .lr = 1, .step_size = 30, .gamma = 0.1};
  EXPECT_DOUBLE_EQ(step.at(29), 1);
  EXPECT_DOUBLE_EQ(step.at(30), 0.1);
  EXPECT_NEAR(step.at(60), 0.01, 1e-15);
  const Schedule multi{.kind = ScheduleKind::multi_step, .lr = 1, .gamma = 0.5, .milestones = {3, 5}};
  EXPECT_DOUBLE_EQ(multi.at(2), 1);
  EXPECT_DOUBLE_EQ(multi.at(3), 0.5);
  EXPECT_DOUBLE_EQ(multi.at(5), 0.25);
  const Schedule linear{.kind = ScheduleKind::linear, .lr = 1, .min_lr = 0.2, .total_steps = 10};
  EXPECT_NEAR(linear.at(5), 0.6, 1e-15);
  EXPECT_NEAR(linear.at(20), 0.2, 1e-15);
}

TEST(GradScaler, GrowsAfterTheIntervalAndBacksOffAtOnce) {
  GradScaler scaler({.scale = 8, .growth_interval = 3});
  for (int i = 0; i < 2; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 16);
  EXPECT_EQ(scaler.inverse(), 1.0 / 16);
  scaler.update(false);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
  GradScaler largest({.scale = std::numeric_limits<float>::max(), .growth_interval = 1});
  largest.update(false);  // would be inf: stays
  EXPECT_EQ(largest.scale(), static_cast<double>(std::numeric_limits<float>::max()));
}

TEST(Clip, FactorIsTorchs) {
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 1 / (4 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_factor(4, 0), 1);
  EXPECT_TRUE(std::isnan(clip_factor(NAN, 1)));
}

TEST(Optimizer, RefusesValuesThatMakeNoSense) {
  const engine::Model model = engine::build_model({.name = "linear", .inputs = 2}, {}, 1).value();
  auto kernels = engine::make_reference_kernels();
  auto store = engine::ParameterStore::create(model.graph, *kernels).value();
  store->allocate_gradients();
  OptimizerConfig config;
  config.momentum = -1;
  EXPECT_NE(Optimizer::create(config, *store).error().message().find("momentum is -1"), std::string::npos);
  config.momentum = 0;
  config.nesterov = true;
  EXPECT_FALSE(Optimizer::create(config, *store).has_value());
  EXPECT_FALSE(Optimizer::create({.kind = OptimizerKind::adamw, .beta1 = 1}, *store).has_value());
}

TEST(Optimizer, StateIsNamedAndRoundTrips) {
  const engine::Model model = engine::build_model({.name = "linear", .inputs = 3, .outputs = 2}, {}, 1).value();
  auto kernels = engine::make_cpu_kernels().value();
  auto store = engine::ParameterStore::create(model.graph, *kernels).value();
  store->allocate_gradients();
  auto adamw = Optimizer::create({.kind = OptimizerKind::adamw}, *store).value();
  const auto state = adamw->state();
  ASSERT_EQ(state.size(), 4u);
  EXPECT_EQ(state[0].parameter, "fc.weight");
  EXPECT_EQ(state[0].kind, "exp_avg");
  EXPECT_EQ(state[3].parameter, "fc.bias");
  EXPECT_EQ(state[3].kind, "exp_avg_sq");
  const float values[] = {1, 2, 3, 4, 5, 6};
  adamw->write(state[1], values);
  float back[6] = {};
  adamw->read(state[1], back);
  EXPECT_EQ(back[5], 6.0f);
  auto sgd = Optimizer::create({.kind = OptimizerKind::sgd}, *store).value();
  EXPECT_TRUE(sgd->state().empty());
}

TEST(Clip, SummaryIsTheNormOfAllGradientsAndSeesInf) {
  const engine::Model model = engine::build_model({.name = "linear", .inputs = 3, .outputs = 2}, {}, 1).value();
  auto kernels = engine::make_cpu_kernels().value();
  auto store = engine::ParameterStore::create(model.graph, *kernels).value();
  store->allocate_gradients();
  for (const engine::Parameter& p : store->parameters()) {
    for (std::size_t i = 0; i < p.count(); ++i) static_cast<float*>(p.gradient)[i] = 2;
  }
  const GradientSummary s = summarise_gradients(*store, 0.5);
  EXPECT_NEAR(s.norm, std::sqrt(8.0), 1e-6);
  EXPECT_FALSE(s.found_inf);
  static_cast<float*>((*store)[*store->find("fc.bias")].gradient)[1] = INFINITY;
  EXPECT_TRUE(summarise_gradients(*store).found_inf);
}

}  // namespace
}  // namespace ddprun::optim
