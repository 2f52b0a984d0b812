// Counts what one training step allocates, by standing in front of the allocator: engine, kernels and optimizer must
// ask for nothing. oneDNN keeps books of a few hundred bytes per call (its argument maps); those pass, a tensor would
// not.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

#include "tests/unit/engine/engine_support.h"
#include "worker/optim/clip.h"
#include "worker/optim/optimizer.h"

namespace {

std::atomic<bool> watching{false};
std::atomic<std::size_t> allocations{0}, largest{0};

void note(std::size_t size) {
  if (!watching.load(std::memory_order_relaxed)) return;
  allocations.fetch_add(1);
  std::size_t seen = largest.load();
  while (size > seen && !largest.compare_exchange_weak(seen, size)) {
  }
}

}  // namespace

// The whole process allocates through these, shared libraries included.
void* operator new(std::size_t size) {
  note(size);
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  note(size);
  const std::size_t a = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (size + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace ddprun::engine::testing {
namespace {

struct Counted {
  std::size_t allocations, largest;
  std::ptrdiff_t heap_growth;  // of malloc's arenas and mappings, the least of three times four steps
};

Counted count_steps(Trial& trial, optim::Optimizer& optimizer) {
  const std::function<void(ParamId)> on_ready = [](ParamId) {};
  auto step = [&](bool accumulate) {
    trial.forward();
    trial.plan->backward({.accumulate = accumulate}, on_ready);
    const optim::GradientSummary s = optim::summarise_gradients(*trial.store);
    optimizer.step(1e-3, {.clip = optim::clip_factor(s.norm, 1)});
  };
  for (int i = 0; i < 3; ++i) step(i % 2 == 1);
  const auto in_use = [] {
    const struct mallinfo2 now = mallinfo2();
    return static_cast<std::ptrdiff_t>(now.uordblks + now.hblkhd);
  };
  allocations = largest = 0;
  watching = true;
  // What a library keeps from step to step may lie in a chunk with some bytes to spare this time and none the next: a
  // leak grows over and over.
  std::ptrdiff_t growth = std::numeric_limits<std::ptrdiff_t>::max();
  for (int window = 0; window < 3; ++window) {
    const std::ptrdiff_t before = in_use();
    for (int i = 0; i < 4; ++i) step(i % 2 == 1);
    growth = std::min(growth, in_use() - before);
  }
  watching = false;
  return {allocations.load(), largest.load(), growth};
}

class Allocations : public ::testing::TestWithParam<ModelCase> {};

TEST_P(Allocations, AStepAllocatesNothing) {
  for (bool checkpointing : {false, true}) {
    Trial trial(GetParam(), make_cpu_kernels().value(), {.activation_checkpointing = checkpointing});
    auto optimizer = optim::Optimizer::create({.kind = optim::OptimizerKind::adamw}, *trial.store).value();
    const Counted c = count_steps(trial, *optimizer);
    EXPECT_LE(c.largest, 1024u) << "of " << c.allocations;
    EXPECT_LE(c.heap_growth, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Allocations, ::testing::ValuesIn(small_models()),
                         [](const auto& param) { return param.param.name; });

// Without oneDNN in the way the count is exact. add, gelu, norms and losses: all that is ours.
TEST(Allocations, OwnCodeAllocatesNothingAtAll) {
  Graph g;
  const Value x = g.input("x", Shape{64, 96}, DType::f32), t = g.input("t", Shape{64}, DType::i32);
  const Value y = g.layer_norm(g.dropout(g.gelu(g.layer_norm(x, "a")), 0.1), "b");
  g.set_loss(g.cross_entropy(g.batch_norm(y, "c", true), t));
  auto kernels = make_cpu_kernels().value();
  auto store = ParameterStore::create(g, *kernels).value();
  initialise({.init = Init::zeros}, *store, 0);
  store->allocate_gradients();
  auto plan = Plan::create(g, *store, {}).value();
  auto optimizer = optim::Optimizer::create({.momentum = 0.9}, *store).value();
  const std::vector<float> input(64 * 96, 0.5f);
  const std::vector<std::int32_t> target(64, 3);
  const std::function<void(ParamId)> on_ready = [](ParamId) {};
  auto step = [&] {
    plan->load(x, input.data()).value();
    plan->load(t, target.data()).value();
    plan->forward({.seed = 1});
    plan->backward({}, on_ready);
    optim::summarise_gradients(*store);
    optimizer->step(0.1);
  };
  step();
  allocations = 0;
  watching = true;
  for (int i = 0; i < 3; ++i) step();
  watching = false;
  EXPECT_EQ(allocations.load(), 0u);
}

}  // namespace
}  // namespace ddprun::engine::testing
