// Against numbers that PyTorch computed in double (tests/interop/make_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/unit/engine/engine_support.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/optim/optimizer.h"

namespace ddprun::engine::testing {
namespace {

checkpoint::SafetensorsFile open(const std::string& name) {
  return checkpoint::SafetensorsFile::open(std::string(DDPRUN_SOURCE_DIR) + "/tests/testdata/engine/" + name).value();
}

template <typename T>
std::vector<T> values(const checkpoint::SafetensorsFile& file, const std::string& name) {
  const checkpoint::TensorView* t = file.find(name);
  CHECK(t != nullptr, "a tensor is missing in the golden file");
  std::vector<T> out(t->bytes.size() / sizeof(T));
  std::memcpy(out.data(), t->bytes.data(), t->bytes.size());
  return out;
}

struct Golden {
  std::string file;
  ModelConfig model;
  LossConfig loss;
  std::int64_t batch;
  optim::OptimizerConfig optimizer;
  double lr;
};

std::vector<Golden> goldens() {
  optim::OptimizerConfig nesterov{
      .kind = optim::OptimizerKind::sgd, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01};
  optim::OptimizerConfig momentum{.kind = optim::OptimizerKind::sgd, .momentum = 0.9};
  optim::OptimizerConfig adamw{.kind = optim::OptimizerKind::adamw, .weight_decay = 0.1};
  return {{"mlp_sgd",
           {.name = "mlp", .inputs = 12, .outputs = 5, .hidden = {16, 8}},
           {.label_smoothing = 0.1},
           9,
           nesterov,
           0.1},
          {"gpt2_adamw",
           {.name = "gpt2",
            .gpt2 = {.vocabulary = 31, .context = 16, .sequence_length = 16, .layers = 2, .heads = 4, .embedding = 32}},
           {},
           3,
           adamw,
           1e-3},
          {"resnet18_sgd", {.name = "resnet18", .outputs = 5, .width = 4, .image_size = 40}, {}, 4, momentum, 0.02}};
}

class GoldenRun : public ::testing::TestWithParam<Golden> {
 protected:
  // Trains as the recipe says and compares losses, first gradients and last weights.
  void run(std::unique_ptr<Kernels> kernels, bool checkpointing, double loss_tolerance, double tensor_tolerance) {
    const Golden& g = GetParam();
    const auto file = open(g.file + ".safetensors");
    const Model model = build_model(g.model, g.loss, g.batch).value();
    auto store = ParameterStore::create(model.graph, *kernels).value();
    store->allocate_gradients();
    for (const Parameter& p : store->parameters()) {
      if (p.on_host) continue;
      store->write_f32(p.id, values<float>(file, "init." + p.name));
    }
    auto plan = Plan::create(model.graph, *store, {.activation_checkpointing = checkpointing}).value();
    auto optimizer = optim::Optimizer::create(g.optimizer, *store).value();
    const auto input = values<std::int32_t>(file, "input");  // bytes: f32 or i32
    const auto target = values<std::int32_t>(file, "target");
    const auto losses = values<double>(file, "losses");
    for (std::size_t step = 0; step < losses.size(); ++step) {
      plan->load(model.input, input.data()).value();
      plan->load(model.target, target.data()).value();
      plan->forward();
      EXPECT_NEAR(plan->loss(), losses[step], loss_tolerance) << "step " << step;
      plan->backward({}, nullptr);
      if (step == 0) {
        for (const Parameter& p : store->parameters()) {
          if (p.trainable)
            near(store->read_gradient_f32(p.id), values<float>(file, "grad." + p.name), tensor_tolerance, p);
        }
      }
      optimizer->step(g.lr);
    }
    for (const Parameter& p : store->parameters()) {
      if (p.on_host) {
        std::int64_t tracked = 0;
        store->read(p.id, &tracked);
        EXPECT_EQ(tracked, static_cast<std::int64_t>(losses.size()));
        continue;
      }
      auto expected = values<float>(file, "final." + p.name);
      const auto actual = store->read_f32(p.id);
      if (p.name.ends_with("c_attn.bias")) {
        // The loss does not depend on the keys' bias: rounding noise, which AdamW makes large.
        const std::size_t third = expected.size() / 3;
        std::copy(actual.begin() + static_cast<std::ptrdiff_t>(third),
                  actual.begin() + static_cast<std::ptrdiff_t>(2 * third),
                  expected.begin() + static_cast<std::ptrdiff_t>(third));
      }
      near(actual, expected, 10 * tensor_tolerance, p);
    }
  }

  static void near(const std::vector<float>& actual, const std::vector<float>& expected, double tolerance,
                   const Parameter& p) {
    ASSERT_EQ(actual.size(), expected.size()) << p.name;
    double difference = 0, size = 1e-12;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      difference += std::pow(static_cast<double>(actual[i]) - static_cast<double>(expected[i]), 2);
      size += std::pow(static_cast<double>(expected[i]), 2);
    }
    EXPECT_LT(std::sqrt(difference / size), tolerance) << p.name;
  }
};

// double against double: only the fp32 of the file is between them.
TEST_P(GoldenRun, ReferenceBackendEqualsTorch) { run(make_reference_kernels(), false, 1e-9, 1e-6); }
TEST_P(GoldenRun, ReferenceBackendWithCheckpointing) { run(make_reference_kernels(), true, 1e-9, 1e-6); }
TEST_P(GoldenRun, CpuBackendEqualsTorch) {
  const bool chaotic = GetParam().model.name == "resnet18";  // batch norm over 4 images at 2x2
  run(make_cpu_kernels().value(), false, chaotic ? 1e-3 : 1e-5, chaotic ? 1e-2 : 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Torch, GoldenRun, ::testing::ValuesIn(goldens()),
                         [](const auto& param) { return param.param.file; });

// torch.manual_seed(3), then the real constructor (torchvision, torch.nn, Hugging Face): equal to the bit.
class SameSeed : public ::testing::Test {
 protected:
  // `prefix` + name of each tensor of the file: its first (or, for the mlp, last) elements.
  void compare(const ModelConfig& config, const std::string& prefix, std::initializer_list<const char*> only,
               bool last = false) {
    const auto file = open("initial_weights.safetensors");
    auto kernels = make_cpu_kernels().value();
    const Model model = build_model(config, {}, 1).value();
    auto store = ParameterStore::create(model.graph, *kernels).value();
    initialise(config, *store, 3);
    std::size_t compared = 0;
    for (const Parameter& p : store->parameters()) {
      if (only.size() > 0 && std::find(only.begin(), only.end(), p.name) == only.end()) continue;
      const auto expected = values<float>(file, prefix + p.name);
      const auto actual = store->read_f32(p.id);
      ASSERT_LE(expected.size(), actual.size()) << p.name;
      const std::size_t skip = last ? actual.size() - expected.size() : 0;
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(actual[skip + i], expected[i]) << p.name << " " << i;
      ++compared;
    }
    EXPECT_EQ(compared, only.size() > 0 ? only.size() : store->parameters().size());
  }
};

TEST_F(SameSeed, ResnetIsTorchvisions) {
  compare({.name = "resnet18", .outputs = 10}, "",
          {"conv1.weight", "layer2.0.downsample.0.weight", "layer2.0.conv1.weight", "layer4.1.conv2.weight",
           "fc.weight", "fc.bias"});
}
TEST_F(SameSeed, MlpIsTorchs) {
  compare({.name = "mlp", .inputs = 12, .outputs = 5, .hidden = {16, 8}}, "mlp.", {}, true);
}
TEST_F(SameSeed, Gpt2IsHuggingFaces) {
  compare({.name = "gpt2",
           .gpt2 = {.vocabulary = 21, .context = 5, .sequence_length = 5, .layers = 2, .heads = 1, .embedding = 3}},
          "gpt2.", {});
}

}  // namespace
}  // namespace ddprun::engine::testing
