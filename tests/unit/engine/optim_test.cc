#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/engine/engine_support.h"
#include "worker/models/flops.h"
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

// torch 2.15: OneCycleLR(max_lr 1, total_steps 10, pct_start 0.3).
TEST(Schedule, OneCycleEqualsTorch) {
  const Schedule s{.kind = ScheduleKind::one_cycle, .lr = 1, .total_steps = 10};
  EXPECT_NEAR(s.at(0), 0.04, 1e-12);
  EXPECT_NEAR(s.at(1), 0.52, 1e-12);
  EXPECT_NEAR(s.at(2), 1, 1e-12);
  EXPECT_NEAR(s.at(9), 4e-6, 1e-12);
  EXPECT_NEAR(s.at(50), 4e-6, 1e-12);
  EXPECT_GT(s.at(5), s.at(6));
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

// torch's AveragedModel with get_ema_multi_avg_fn: a copy at first, then a + (1 - decay) (p - a).
TEST(Optimizer, AveragesFollowTheParametersAndMayTakeTheirPlace) {
  const engine::Model model = engine::build_model({.name = "linear", .inputs = 3, .outputs = 2}, {}, 1).value();
  auto kernels = engine::make_cpu_kernels().value();
  auto store = engine::ParameterStore::create(model.graph, *kernels).value();
  store->allocate_gradients();
  const engine::Parameter& bias = (*store)[*store->find("fc.bias")];
  float* gradient = static_cast<float*>(bias.gradient);
  for (const bool momentum : {false, true}) {
    store->write_f32(bias.id, std::vector<float>{0, 0});
    auto optimizer = Optimizer::create({.momentum = momentum ? 0.5 : 0, .average = 0.75}, *store).value();
    EXPECT_EQ(optimizer->state().size(), momentum ? 4u : 2u);
    optimizer->swap_average();  // nothing before the first update
    EXPECT_EQ(store->read_f32(bias.id)[0], 0);
    double p = 0, velocity = 0, average = 0;
    for (int step = 0; step < 5; ++step) {
      gradient[0] = static_cast<float>(step + 1);
      gradient[1] = 0;
      optimizer->step(0.1);
      velocity = momentum && step > 0 ? 0.5 * velocity + (step + 1) : step + 1;
      p -= 0.1 * velocity;
      average = step == 0 ? p : average + 0.25 * (p - average);
    }
    EXPECT_NEAR(store->read_f32(bias.id)[0], p, 1e-6);
    optimizer->swap_average();
    EXPECT_NEAR(store->read_f32(bias.id)[0], average, 1e-6);
    optimizer->swap_average();
    EXPECT_NEAR(store->read_f32(bias.id)[0], p, 1e-6);
  }
}

TEST(Flops, CountMatrixProductsConvolutionsAndAttention) {
  const auto flops = [](const engine::ModelConfig& config, std::int64_t batch) {
    return engine::forward_flops(engine::build_model(config, {}, batch).value().graph);
  };
  EXPECT_EQ(flops({.name = "mlp", .inputs = 3, .outputs = 2, .hidden = {5}}, 4), 2.0 * 4 * (3 * 5 + 5 * 2));
  // As the papers count multiply-adds: ResNet-18 1.82e9, ResNet-50 4.1e9.
  EXPECT_NEAR(flops({.name = "resnet18", .outputs = 1000}, 1), 2 * 1.82e9, 0.02e9 * 2);
  EXPECT_NEAR(flops({.name = "resnet50", .outputs = 1000}, 2), 2 * 2 * 4.09e9, 0.05e9 * 4);
  engine::ModelConfig gpt{.name = "gpt2"};
  gpt.gpt2 = {.vocabulary = 11, .context = 8, .sequence_length = 8, .layers = 1, .heads = 2, .embedding = 4};
  EXPECT_EQ(flops(gpt, 1), 2.0 * 8 * (4 * 12 + 4 * 4 + 2 * 4 * 16 + 4 * 11) + 2.0 * 8 * 8 * 4);
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
