#include "worker/models/models.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/unit/engine/engine_support.h"
#include "worker/tensor/rng.h"

namespace ddprun::engine {
namespace {

std::pair<std::int64_t, std::size_t> trainable(const ModelConfig& config) {
  const Model model = build_model(config, {}, 1).value();
  std::int64_t count = 0;
  std::size_t tensors = 0;
  for (const ParameterSpec& p : model.graph.parameters()) {
    if (p.buffer) continue;
    count += p.shape.count();
    ++tensors;
  }
  return {count, tensors};
}

TEST(Models, HaveTorchvisionsAndHuggingFacesParameterCounts) {
  EXPECT_EQ(trainable({.name = "resnet18", .outputs = 1000}), std::pair(std::int64_t{11689512}, std::size_t{62}));
  EXPECT_EQ(trainable({.name = "resnet50", .outputs = 1000}), std::pair(std::int64_t{25557032}, std::size_t{161}));
  EXPECT_EQ(trainable({.name = "gpt2"}).first, 124439808);
}

TEST(Models, RefuseWhatDoesNotFitAndNameIt) {
  auto message = [](const ModelConfig& c, const LossConfig& l = {}) { return build_model(c, l, 4).error().message(); };
  EXPECT_NE(message({.name = "vgg"}).find("unknown"), std::string::npos);
  EXPECT_NE(message({.name = "mlp"}).find("inputs must be positive"), std::string::npos);
  EXPECT_NE(message({.name = "gpt2", .gpt2 = {.heads = 7}}).find("no multiple of heads 7"), std::string::npos);
  EXPECT_NE(message({.name = "gpt2", .gpt2 = {.context = 10, .sequence_length = 11}}).find("not in 1..10"),
            std::string::npos);
  EXPECT_NE(message({.name = "resnet18"}, {.kind = LossKind::mse}).find("cross_entropy"), std::string::npos);
}

// Golden values of torch 2.15.0 (torch.manual_seed(0); torch.nn.Linear(4, 3)).
TEST(Initialise, LinearEqualsTorchToTheBit) {
  const ModelConfig config{.name = "linear", .inputs = 4, .outputs = 3};
  const Model model = build_model(config, {}, 1).value();
  auto kernels = make_cpu_kernels().value();
  auto store = ParameterStore::create(model.graph, *kernels).value();
  initialise(config, *store, 0);
  const float weight[] = {-0.00374341011f, 0.268221796f, -0.411522567f,  -0.367969513f, -0.192577183f, 0.134078681f,
                          -0.00990658998f, 0.396444738f, -0.0443720222f, 0.132306278f,  -0.151106536f, -0.0982826948f};
  const float bias[] = {-0.477674246f, -0.331141055f, -0.20611155f};
  const auto w = store->read_f32(*store->find("fc.weight")), b = store->read_f32(*store->find("fc.bias"));
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_EQ(w[i], weight[i]) << i;
  for (std::size_t i = 0; i < b.size(); ++i) EXPECT_EQ(b[i], bias[i]) << i;
}

TEST(Generator, DrawsTorchsNumbers) {
  float u[3];
  Generator(1).uniform(u, 0, 1);
  EXPECT_EQ(u[0], 0.7576316f);
  EXPECT_EQ(u[1], 0.279310882f);
  EXPECT_EQ(u[2], 0.403069258f);
  Generator g(5);
  for (std::uint64_t expected : {0x38d48b630e2048ceULL, 0x5ee84fefd4d1e6bdULL, 0x34eb8be65d1ddc76ULL}) {
    EXPECT_EQ(g.draw64() & ~(1ULL << 63), expected);
  }
}

TEST(MersenneTwister, IsTheStandardLibrarys) {
  for (std::uint32_t seed : {0u, 1u, 5489u, 0xffffffffu}) {
    std::mt19937 expected(seed);
    MersenneTwister ours(seed);
    for (int i = 0; i < 1500; ++i) ASSERT_EQ(ours.next(), expected()) << i;
    for (std::size_t skip : {std::size_t{0}, std::size_t{1}, std::size_t{371}, std::size_t{624}, std::size_t{5000}}) {
      ours.discard(skip);
      expected.discard(skip);
      std::vector<float> values(1 + skip % 1000);
      ours.fill(values);
      for (float v : values) ASSERT_EQ(v, static_cast<float>(expected() & 0xFFFFFF) * 0x1p-24f);
    }
  }
}

TEST(Philox, IsThePublishedFunction) {
  // Known answers of Random123's kat_vectors for philox4x32-10.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Initialise, ZerosLeavesNormsAtOne) {
  const ModelConfig config{
      .name = "resnet18", .init = Init::zeros, .outputs = 2, .stem = Stem::small, .width = 2, .image_size = 8};
  const Model model = build_model(config, {}, 1).value();
  auto kernels = make_reference_kernels();
  auto store = ParameterStore::create(model.graph, *kernels).value();
  initialise(config, *store, 4);
  EXPECT_EQ(store->read_f32(*store->find("bn1.weight"))[0], 1.0f);
  EXPECT_EQ(store->read_f32(*store->find("bn1.running_var"))[1], 1.0f);
  EXPECT_EQ(store->read_f32(*store->find("conv1.weight"))[5], 0.0f);
  EXPECT_EQ(store->read_f32(*store->find("fc.weight"))[0], 0.0f);
}

// Golden values of torch 2.15.0, CPU.
TEST(Losses, EqualTorchs) {
  const float logits[] = {1, 2, 3, 0, 0, 1};
  const std::int32_t targets[] = {2, 0};
  for (const auto& [smoothing, expected] : {std::pair{0.0, 0.9795253391882157}, std::pair{0.1, 1.0128586725215492}}) {
    Graph g;
    const Value x = g.input("x", Shape{2, 3}, DType::f32), t = g.input("t", Shape{2}, DType::i32);
    g.set_loss(g.cross_entropy(x, t, {.label_smoothing = smoothing}));
    auto kernels = make_reference_kernels();
    auto store = ParameterStore::create(g, *kernels).value();
    auto plan = Plan::create(g, *store, {.training = false}).value();
    plan->load(x, logits).value();
    plan->load(t, targets).value();
    plan->forward();
    EXPECT_NEAR(plan->loss(), expected, 1e-15);
  }
}

TEST(BatchNorm, MovesRunningStatisticsAsTorch) {
  Graph g;
  const Value x = g.input("x", Shape{8, 1, 1, 1}, DType::f32), t = g.input("t", Shape{8}, DType::f32);
  g.set_loss(g.mse(g.batch_norm(x, "bn"), t));
  auto kernels = make_cpu_kernels().value();
  auto store = ParameterStore::create(g, *kernels).value();
  initialise({.init = Init::zeros}, *store, 0);
  store->allocate_gradients();
  auto plan = Plan::create(g, *store, {}).value();
  const float values[] = {0, 1, 2, 3, 4, 5, 6, 7};
  plan->load(x, values).value();
  plan->load(t, values).value();
  plan->forward();
  EXPECT_NEAR(store->read_f32(*store->find("bn.running_mean"))[0], 0.35f, 1e-7);
  EXPECT_NEAR(store->read_f32(*store->find("bn.running_var"))[0], 1.5f, 1e-6);
  std::int64_t tracked = 0;
  store->read(*store->find("bn.num_batches_tracked"), &tracked);
  EXPECT_EQ(tracked, 1);
}

}  // namespace
}  // namespace ddprun::engine
