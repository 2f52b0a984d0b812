// Whole models on several ranks: parameters have the same bits everywhere after every step, and N ranks train as one
// rank does that accumulates the same N micro-batches (dropout masks included).
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <sstream>

#include "tests/support/comm_ranks.h"
#include "tests/unit/engine/engine_support.h"
#include "worker/base/crc32c.h"
#include "worker/ddp/reducer.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/optim/clip.h"
#include "worker/optim/optimizer.h"

namespace ddprun::engine::testing {
namespace {

using comm::Communicator;
using ddprun::testing::Kind;
using ddprun::testing::RankContext;

constexpr int kSteps = 5;

class Rank {
 public:
  Rank(Communicator& communicator, const ModelCase& model, int accumulate)
      : c_(communicator), accumulate_(accumulate), trial_(model, make_cpu_kernels().value()) {}

  // "" or what went wrong; `losses`: of each step, mean over all micro-batches of all ranks.
  std::string train(std::vector<double>& losses) {
    auto made = ddp::Reducer::create(c_, infos(), order(), small_buckets());
    RANK_OK(made);
    for (ddp::ParamId p : order()) trial_.store->set_gradient({p}, (*made)->gradient_bytes(p));
    const bool gpt = trial_.model.graph.values()[trial_.model.input.id].type == ValueSpec::Type::i32;
    optim::OptimizerConfig recipe{.kind = optim::OptimizerKind::sgd, .momentum = 0.9};
    if (gpt) recipe = {.kind = optim::OptimizerKind::adamw, .weight_decay = 0.1};
    auto optimizer = optim::Optimizer::create(recipe, *trial_.store);
    RANK_OK(optimizer);
    for (int step = 0; step < kSteps; ++step) {
      double loss[1] = {0};
      for (int micro = 0; micro < accumulate_; ++micro) {
        const std::string wrong = micro_batch(**made, step, micro, loss[0]);
        if (!wrong.empty()) return wrong;
      }
      RANK_OK(ddp::sync_metrics(c_, loss, comm::Reduce::sum));
      losses.push_back(loss[0] / (accumulate_ * c_.world_size()));
      const optim::GradientSummary gradients = optim::summarise_gradients(*trial_.store);
      (*optimizer)->step(gpt ? 1e-2 : 0.05, {.clip = optim::clip_factor(gradients.norm, 0.5)});
      const std::string unequal = compare(step);
      if (!unequal.empty()) return unequal;
    }
    return "";
  }

  // Another bit in one weight of the last rank.
  void damage() {
    if (c_.rank() != c_.world_size() - 1) return;
    auto* bits = static_cast<std::uint32_t*>(trial_.store->parameters().front().data);
    *bits ^= 1;
  }

 private:
  std::string micro_batch(ddp::Reducer& reducer, int step, int micro, double& loss) {
    const int stream = micro * c_.world_size() + c_.rank();
    fill(static_cast<unsigned>(step * 100 + stream));
    loss += trial_.forward(
        {.seed = 5, .step = static_cast<std::uint64_t>(step), .stream = static_cast<std::uint32_t>(stream)});
    reducer.begin(micro + 1 == accumulate_ ? ddp::Sync::now : ddp::Sync::later);
    const std::function<void(ParamId)> on_ready = [&](ParamId p) { reducer.mark_ready(p.index); };
    trial_.plan->backward({.loss_scale = 1.0 / accumulate_, .accumulate = reducer.accumulate()}, on_ready);
    RANK_OK(reducer.finish());
    return "";
  }

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : trial_.input) x = normal(random);
    for (float& x : trial_.target) x = normal(random);
    for (auto* ids : {&trial_.input_ids, &trial_.target_ids}) {
      std::sort(ids->begin(), ids->end());  // not what the micro-batch before left
      std::shuffle(ids->begin(), ids->end(), random);
    }
  }

  std::string compare(int step) {
    std::vector<std::int64_t> sums(static_cast<std::size_t>(c_.world_size()));
    std::uint32_t sum = 0;
    for (const Parameter& p : trial_.store->parameters()) {
      if (p.buffer) continue;  // running statistics are each rank's own
      sum = crc32c({static_cast<const std::byte*>(p.data), p.size_bytes()}, sum);
    }
    std::int64_t mine = sum;
    RANK_OK(c_.all_gather({&mine, 1, comm::DType::i64}, {sums.data(), sums.size(), comm::DType::i64}).wait());
    for (std::int64_t other : sums) {
      if (other != mine) return "parameters differ after step " + std::to_string(step);
    }
    return "";
  }

  std::vector<ddp::ParameterInfo> infos() const {
    std::vector<ddp::ParameterInfo> out;
    for (const Parameter& p : trial_.store->parameters()) {
      const comm::DType type = p.dtype == DType::i64 ? comm::DType::i64 : comm::DType::f32;
      out.push_back({p.name, {p.shape.extents().begin(), p.shape.extents().end()}, type, p.count()});
    }
    return out;
  }
  std::vector<ddp::ParamId> order() const {
    std::vector<ddp::ParamId> out;
    for (ParamId p : trial_.plan->ready_order()) out.push_back(p.index);
    return out;
  }
  static ddp::ReducerOptions small_buckets() {
    ddp::ReducerOptions options;
    options.bucket_cap_mb = 0.002;
    options.first_bucket_mb = 0.0005;
    return options;
  }

  Communicator& c_;
  int accumulate_;
  Trial trial_;
};

// Losses on `ranks` ranks with `accumulate` micro-batches each.
std::vector<double> losses_of(const ModelCase& model, int ranks, int accumulate, Kind kind = Kind::shm_threads,
                              bool damaged = false) {
  const auto outcomes = ddprun::testing::run_ranks(
      ranks,
      [&](RankContext& context) -> std::string {
        omp_set_num_threads(1);
        auto communicator = ddprun::testing::make_test_communicator(kind, context, std::chrono::seconds(50));
        RANK_OK(communicator);
        Rank rank(**communicator, model, accumulate);
        if (damaged) rank.damage();
        std::vector<double> losses;
        const std::string wrong = rank.train(losses);
        if (!wrong.empty()) return wrong;
        std::ostringstream text;
        text.precision(17);
        for (double loss : losses) text << loss << ' ';
        return text.str();
      },
      std::chrono::seconds(120));
  std::vector<double> losses;
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.signal == 0 && !outcome.overran) << outcome.text;
    EXPECT_EQ(outcome.text, outcomes.front().text) << "ranks disagree on the loss";
    std::istringstream text(outcome.text);
    losses.assign(std::istream_iterator<double>(text), {});
    EXPECT_EQ(losses.size(), static_cast<std::size_t>(damaged ? 0 : kSteps)) << outcome.text;
    if (damaged) {
      EXPECT_EQ(outcome.text, "parameters differ after step 0");
    }
  }
  return losses;
}

class EngineRanks : public ::testing::TestWithParam<ModelCase> {};

TEST_P(EngineRanks, AnyWayToTheSameMicroBatchesGivesTheSameLosses) {
  // With batch norm rounding is amplified: the same micro-batches have the same statistics, but their products are
  // summed by another number of ranks.
  const double tolerance = GetParam().config.name.starts_with("resnet") ? 5e-3 : 1e-6;
  const auto four = losses_of(GetParam(), 4, 1);
  const auto two = losses_of(GetParam(), 2, 2, Kind::tcp);
  const auto one = losses_of(GetParam(), 1, 4);
  ASSERT_EQ(four.size(), one.size());
  ASSERT_EQ(two.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(four[i], one[i], tolerance * std::max(1.0, one[i])) << i;
    EXPECT_NEAR(two[i], one[i], tolerance * std::max(1.0, one[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineRanks, ::testing::ValuesIn([] {
                           auto models = small_models();
                           std::erase_if(models, [](const ModelCase& m) { return m.config.name == "resnet50"; });
                           return models;
                         }()),
                         [](const auto& param) { return param.param.name; });

TEST(EngineRanks, AnotherBitOnOneRankIsSeen) { losses_of(small_models()[1], 2, 1, Kind::shm, true); }

}  // namespace
}  // namespace ddprun::engine::testing
