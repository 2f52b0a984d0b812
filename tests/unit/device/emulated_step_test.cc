// Whole steps of the models through the CUDA backend's host code over emulated libraries (tests/gpu/emulation): results
// beside the reference in double, order of calls, streams, descriptors, leaks, and what is said when a call fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/gpu/emulation/emulation.h"
#include "tests/unit/engine/engine_support.h"
#include "worker/cuda/cuda_kernels.h"
#include "worker/cuda/device_api_real.h"
#include "worker/device/device_context.h"
#include "worker/optim/clip.h"
#include "worker/optim/optimizer.h"

namespace ddprun::engine::testing {
namespace {

using emulated::conduct;
using emulated::Streams;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A process's device, opened as the backend does it.
struct Device {
  explicit Device(int rank = 0) : api(cuda::make_device_api()) {
    auto opened = cuda::DeviceContext::open(*api, rank, 0);
    if (opened) {
      context = std::move(*opened);
    } else {
      failure = opened.error().message();
    }
  }
  std::unique_ptr<Kernels> kernels(DType type = DType::f32, bool tf32 = false) {
    auto made = make_cuda_kernels(*context, {type, tf32});
    if (!made) failure = made.error().message();
    return made ? std::move(*made) : nullptr;
  }
  std::unique_ptr<cuda::DeviceApi> api;
  std::unique_ptr<cuda::DeviceContext> context;
  std::string failure;
};

// What some optimizer steps leave.
struct Outcome {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> parameters;
};

constexpr int kWarm = 4;  // steps that fill the upload slots

Outcome train(Trial& trial, int steps) {
  auto optimizer = optim::Optimizer::create({.momentum = 0.9}, *trial.store).value();
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    conduct().in_step = step >= kWarm;
    outcome.losses.push_back(trial.forward({.seed = 5, .step = static_cast<std::uint64_t>(step)}));
    trial.backward({.loss_scale = 4});
    const auto summary = optim::summarise_gradients(*trial.store, 0.25);
    EXPECT_FALSE(summary.found_inf);
    outcome.norms.push_back(summary.norm);
    optimizer->step(0.01, {.unscale = 0.25, .clip = optim::clip_factor(summary.norm, 2)});
  }
  conduct().in_step = false;
  for (const Parameter& p : trial.store->parameters()) {
    if (!p.on_host) outcome.parameters.push_back(trial.store->read_f32(p.id));
  }
  return outcome;
}

class EmulatedStep : public ::testing::TestWithParam<ModelCase> {};

TEST_P(EmulatedStep, FollowsTheReferenceInDouble) {
  Trial reference(GetParam(), make_reference_kernels());
  const Outcome wanted = train(reference, 3);
  // 16 bits: rounding moves relu masks and maxima, and batch norm over a few values amplifies it.
  const bool batch_norm = GetParam().config.name.starts_with("resnet");
  const bool few_values = GetParam().config.name == "resnet50";  // 4 images at 2x2: even f32 wanders
  for (const auto& [type, tolerance] : std::map<DType, double>{
           {DType::f32, 2e-4}, {DType::f16, batch_norm ? 0.2 : 0.01}, {DType::bf16, batch_norm ? 0.5 : 0.05}}) {
    if (few_values && type != DType::f32) continue;
    Device device;
    Trial trial(GetParam(), device.kernels(type));
    const Outcome got = train(trial, 3);
    ASSERT_TRUE(device.context->status()) << device.context->status().error().message();
    for (std::size_t i = 0; i < got.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], wanted.losses[i], tolerance * (1 + std::abs(wanted.losses[i])))
          << name_of(type) << " step " << i;
      EXPECT_NEAR(got.norms[i], wanted.norms[i], (few_values ? 50 : 2) * tolerance * (1 + wanted.norms[i]))
          << name_of(type);
    }
  }
}

// A forgotten event, barrier or wait, or a sum whose order depends on the threads', would show here.
TEST_P(EmulatedStep, GivesTheSameBitsInEveryOrderOfStreamsAndThreads) {
  std::vector<Outcome> outcomes;
  const bool small = GetParam().config.name == "mlp" || GetParam().name == "gpt2";
  for (const emulated::Conduct& order :
       {emulated::Conduct{.streams = Streams::eager}, emulated::Conduct{.streams = Streams::lazy, .backwards = true},
        emulated::Conduct{.streams = Streams::lazy, .guarded = true}}) {
    if (order.guarded && !small) continue;
    conduct() = order;
    Device device;
    Trial trial(GetParam(), device.kernels());
    outcomes.push_back(train(trial, kWarm + 1));
    ASSERT_TRUE(device.context->status()) << device.context->status().error().message();
  }
  for (const Outcome& other : outcomes) {
    EXPECT_EQ(other.losses, outcomes.front().losses);
    EXPECT_EQ(other.norms, outcomes.front().norms);
    EXPECT_EQ(other.parameters, outcomes.front().parameters);
  }
}

TEST_P(EmulatedStep, CheckpointingGivesTheSameBits) {
  std::vector<Outcome> outcomes;
  for (bool checkpointing : {false, true}) {
    Device device;
    Trial trial(GetParam(), device.kernels(), {.activation_checkpointing = checkpointing});
    outcomes.push_back(train(trial, 2));
  }
  EXPECT_EQ(outcomes[0].losses, outcomes[1].losses);
  EXPECT_EQ(outcomes[0].parameters, outcomes[1].parameters);
}

TEST_P(EmulatedStep, KeepsToItsStreamsAndWaitsOnlyForWhatItReads) {
  Device device;
  Trial trial(GetParam(), device.kernels());
  train(trial, kWarm);
  emulated::calls().clear();
  conduct().in_step = true;
  trial.forward();
  trial.backward();
  conduct().in_step = false;
  const std::set<std::string> seen(emulated::calls().begin(), emulated::calls().end());
  for (const std::string& call : seen) {
    if (call.ends_with(" copy")) {
      EXPECT_TRUE(call == "cudaMemcpyAsync copy" || call == "cudaEventRecord copy") << call;
    }
    EXPECT_FALSE(call.ends_with(" communication")) << call;
    EXPECT_THAT(call, Not(HasSubstr("Create")));
    EXPECT_THAT(call, Not(HasSubstr("Heuristic")));
    EXPECT_THAT(call, Not(HasSubstr("v7")));
  }
  EXPECT_THAT(seen, Contains("kernel compute"));
}

// Every library call that a plan and a step make fails once: the first failure is told with rank, library, call, the
// library's own words; nothing is queued after it, nothing crashes, nothing is left.
TEST_P(EmulatedStep, AnyCallThatFailsIsNamedAndLeavesNothing) {
  const auto run = [](Device& device) {
    auto kernels = device.context ? device.kernels() : nullptr;
    if (!kernels) return;
    auto model = build_model(GetParam().config, GetParam().loss, GetParam().batch).value();
    auto store = ParameterStore::create(model.graph, *kernels);
    if (!store) {
      device.failure = store.error().message();
      return;
    }
    for (const Parameter& p : (*store)->parameters()) {
      if (!p.trainable) continue;
      void* gradient = kernels->allocate(p.size_bytes());
      if (gradient == nullptr) return;
      (*store)->set_gradient(p.id, gradient);
    }
    auto plan = Plan::create(model.graph, **store, {});
    if (!plan) {
      device.failure = plan.error().message();
      return;
    }
    std::vector<float> input(static_cast<std::size_t>(model.graph.shape(model.input).count()));
    std::vector<float> target(static_cast<std::size_t>(model.graph.shape(model.target).count()));
    (void)(*plan)->load(model.input, input.data());  // zeros are good ids too
    (void)(*plan)->load(model.target, target.data());
    (*plan)->forward();
    (void)(*plan)->loss();
    (*plan)->backward({}, nullptr);
    (void)optim::summarise_gradients(**store);
  };
  emulated::calls().clear();
  {
    Device device(3);
    run(device);
  }
  std::set<std::string> names;
  for (const std::string& call : emulated::calls()) {
    const std::string name = call.substr(0, call.find(' '));
    const bool ends = name.find("Destroy") != std::string::npos || name.find("Free") != std::string::npos;
    if (name != "kernel" && !ends) names.insert(name);
  }
  names.insert("cudaGetLastError");
  names.erase("cudaDeviceGetStreamPriorityRange");  // part of making a stream
  for (const std::string& name : names) {
    for (int after : {0, 3}) {
      emulated::fail(name, 700, after);
      {
        Device device(3);
        run(device);
        std::string said = device.failure;
        if (device.context && !device.context->status()) said = device.context->status().error().message();
        if (said.empty()) {
          EXPECT_EQ(after, 3) << name << " failed and nobody said so";
        } else {
          EXPECT_THAT(said, HasSubstr("rank 3")) << name;
          // A kernel's own failure comes with the kernel's name.
          if (name != "cudaGetLastError") {
            EXPECT_THAT(said, HasSubstr(name));
          }
          EXPECT_THAT(said, HasSubstr("700"));
        }
      }
      emulated::fail(name, 0, 0);
      ASSERT_THAT(emulated::alive(), IsEmpty()) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EmulatedStep, ::testing::ValuesIn(small_models()),
                         [](const auto& param) { return param.param.name; });

std::vector<std::string> descriptors_of_a_step(const ModelCase& model, DType type = DType::f32, bool tf32 = false,
                                               bool accumulate = false) {
  Device device;
  Trial trial(model, device.kernels(type, tf32));
  emulated::descriptors().clear();
  trial.forward();
  trial.backward({.accumulate = accumulate});
  EXPECT_TRUE(device.context->status());
  return emulated::descriptors();
}

// m, n, k and letters are cuBLAS's, column-major: m is our columns.
TEST(EmulatedDescriptors, LinearLayersRideTheirBiasAndAddWhereTheyAreTold) {
  const ModelCase mlp{"mlp", {.name = "mlp", .inputs = 9, .outputs = 4, .hidden = {11}}, {}, 6};
  EXPECT_THAT(descriptors_of_a_step(mlp),
              ElementsAre("gemm m=11 n=6 k=9 TN f32->f32 beta=0 bias", "gemm m=4 n=6 k=11 TN f32->f32 beta=0 bias",
                          "gemm m=11 n=4 k=6 NT f32->f32 beta=0", "gemm m=11 n=6 k=4 NN f32->f32 beta=0",
                          "gemm m=9 n=11 k=6 NT f32->f32 beta=0"));
  EXPECT_THAT(descriptors_of_a_step(mlp, DType::f32, true, true),
              ElementsAre("gemm m=11 n=6 k=9 TN f32->f32 beta=0 bias", "gemm m=4 n=6 k=11 TN f32->f32 beta=0 bias",
                          "gemm m=11 n=4 k=6 NT f32->f32 beta=1 tf32", "gemm m=11 n=6 k=4 NN f32->f32 beta=0 tf32",
                          "gemm m=9 n=11 k=6 NT f32->f32 beta=1 tf32"));
  // Weight gradients of 16-bit activations are f32; the bias is added by our own kernel.
  EXPECT_THAT(descriptors_of_a_step(mlp, DType::bf16),
              ElementsAre("gemm m=11 n=6 k=9 TN bf16->bf16 beta=0", "gemm m=4 n=6 k=11 TN bf16->bf16 beta=0",
                          "gemm m=11 n=4 k=6 NT bf16->f32 beta=0", "gemm m=11 n=6 k=4 NN bf16->bf16 beta=0",
                          "gemm m=9 n=11 k=6 NT bf16->f32 beta=0"));
}

TEST(EmulatedDescriptors, ConvolutionsAreNhwcCrossCorrelations) {
  const ModelCase resnet = small_models()[2];
  const auto lines = descriptors_of_a_step(resnet);
  EXPECT_EQ(lines.front(), "cudnnConvolutionForward x=3x9x9x2 oc=3 kernel=3 stride=1 pad=1 f32 fma beta=0");
  EXPECT_THAT(lines, Contains("cudnnConvolutionForward x=3x9x9x3 oc=6 kernel=3 stride=2 pad=1 f32 fma beta=0"));
  EXPECT_THAT(lines, Contains("cudnnConvolutionForward x=3x9x9x3 oc=6 kernel=1 stride=2 pad=0 f32 fma beta=0"));
  const auto number = [&](const char* call) {
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& l) { return l.starts_with(call); });
  };
  EXPECT_EQ(number("cudnnConvolutionForward "), 20);
  EXPECT_EQ(number("cudnnConvolutionBackwardFilter "), 20);
  EXPECT_EQ(number("cudnnConvolutionBackwardData "), 19);  // none for the image
  for (const std::string& line : descriptors_of_a_step(resnet, DType::f16)) {
    EXPECT_THAT(line, ::testing::AnyOf(HasSubstr("f16 tensor"), Not(HasSubstr("cudnn"))));
  }
  for (const std::string& line : descriptors_of_a_step(resnet, DType::f32, true)) {
    EXPECT_THAT(line, ::testing::AnyOf(HasSubstr("f32 tensor"), Not(HasSubstr("cudnn"))));
  }
}

TEST(EmulatedDescriptors, AttentionIsFourKindsOfBatchedProducts) {
  const ModelCase gpt2 = small_models()[4];  // 7 tokens, 2 heads of 3
  std::map<std::string, int> batched;
  for (const std::string& line : descriptors_of_a_step(gpt2, DType::f16)) {
    if (line.starts_with("batched")) ++batched[line];
  }
  // 2 layers, 3 sequences; scores are made again in backward.
  EXPECT_EQ(batched, (std::map<std::string, int>{
                         {"batched m=7 n=7 k=3 TN f16->f16 beta=0", 18},  // scores, again, and d(scores)
                         {"batched m=3 n=7 k=7 NN f16->f16 beta=0", 12},  // y, dQ
                         {"batched m=3 n=7 k=7 NT f16->f16 beta=0", 12},  // dV, dK
                     }));
}

TEST(EmulatedDevice, DescriptorsAreMadeOnceHoweverManySteps) {
  Device device;
  Trial trial(small_models()[2], device.kernels());
  train(trial, kWarm);
  const auto before = emulated::alive();
  train(trial, kWarm + 3);
  EXPECT_EQ(emulated::alive(), before);
}

// The copies and kernels in front of an event make it "not ready" some times; no launch after that may be blamed for
// it.
TEST(EmulatedDevice, AnEventThatIsNotReadyIsNoErrorOfALaterLaunch) {
  Device device;
  auto kernels = device.kernels();
  auto* memory = static_cast<float*>(kernels->allocate(64));
  for (int i = 0; i < 3; ++i) kernels->add(16, memory, memory, memory);
  kernels->synchronize();
  kernels->add(16, memory, memory, memory);
  float values[16];
  kernels->copy_out(values, memory, sizeof values);
  EXPECT_TRUE(device.context->status()) << device.context->status().error().message();
  kernels->release(memory);
}

// A violation otherwise: cudaFree, cublasDestroy and their like wait for the device.
TEST(EmulatedDevice, ATrialOnADeviceThatHangsEndsWithoutWaitingForIt) {
  {
    Device device;
    Trial trial(small_models()[2], device.kernels());
    trial.forward();
    device.context->set_patience(std::chrono::milliseconds(20));
    conduct().stuck = true;
    trial.plan->forward();
    (void)trial.plan->loss();
    EXPECT_TRUE(device.context->hangs());
  }
  emulated::replace_device();
}

// The same where nobody waits before it ends: the first that gives something back finds out.
TEST(EmulatedDevice, ATrialOnADeviceThatHangsUnseenEndsWithoutWaitingForIt) {
  {
    Device device;
    Trial trial(small_models()[2], device.kernels());
    trial.forward();
    device.context->set_patience(std::chrono::milliseconds(20));
    conduct().stuck = true;
    trial.plan->forward();
  }
  emulated::replace_device();
}

TEST(EmulatedDevice, OutOfMemoryNamesPartsAndRemedies) {
  conduct().device_bytes = std::size_t{40} << 20;  // 32 MiB of it are cuBLAS's workspace
  Device device(2);
  auto kernels = device.kernels();
  auto model = build_model({.name = "mlp", .inputs = 784, .outputs = 10, .hidden = {4096}}, {}, 256).value();
  auto store = ParameterStore::create(model.graph, *kernels);
  EXPECT_FALSE(store);  // cuBLAS's workspace fits, 784 x 4096 weights beside it do not
  ASSERT_FALSE(device.context->status());
  const std::string& said = device.context->status().error().message();
  EXPECT_THAT(said, HasSubstr("rank 2: out of memory on device 0"));
  EXPECT_THAT(said, HasSubstr("cuBLAS workspace 0.03 GiB"));
  EXPECT_THAT(said, HasSubstr("activation_checkpointing"));
}

}  // namespace
}  // namespace ddprun::engine::testing
