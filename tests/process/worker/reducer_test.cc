#include "worker/ddp/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/comm_ranks.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/tensor/half.h"

namespace ddprun::ddp {
namespace {

using comm::Block;
using comm::Communicator;
using comm::DType;
using ::testing::HasSubstr;
using testing::Kind;
using testing::RankContext;

constexpr int kRanks = 3;

std::vector<testing::RankOutcome> outcomes_of(const std::function<std::string(Communicator&)>& body,
                                              Kind kind = Kind::shm, int ranks = kRanks) {
  return testing::run_ranks(ranks, [&](RankContext& context) -> std::string {
    auto communicator = testing::make_test_communicator(kind, context, std::chrono::seconds(50));
    RANK_OK(communicator);
    return body(**communicator);
  });
}

void on_all_ranks(const std::function<std::string(Communicator&)>& body, Kind kind = Kind::shm) {
  EXPECT_EQ(testing::problems(outcomes_of(body, kind)), "");
}

std::vector<ParameterInfo> model() {
  std::vector<ParameterInfo> parameters;
  for (const auto& [name, rows, columns] :
       {std::tuple{"a.weight", 40, 30}, std::tuple{"a.bias", 40, 1}, std::tuple{"b.weight", 100, 77},
        std::tuple{"b.bias", 100, 1}, std::tuple{"frozen", 5, 5}}) {
    ParameterInfo p;
    p.name = name;
    p.shape = columns == 1 ? std::vector<std::int64_t>{rows} : std::vector<std::int64_t>{rows, columns};
    p.count = static_cast<std::size_t>(rows * columns);
    parameters.push_back(p);
  }
  return parameters;
}
const std::vector<ParamId> kOrder = {3, 2, 1, 0};  // 4 is frozen

ReducerOptions small_buckets() {
  ReducerOptions options;
  options.bucket_cap_mb = 0.004;
  options.first_bucket_mb = 0.0003;
  return options;
}

float gradient_of(int rank, ParamId p, std::size_t i, int step) {
  return static_cast<float>((static_cast<int>(i) * 31 + rank * 17 + static_cast<int>(p) * 7 + step) % 101 - 50) / 16;
}

void backward(Reducer& reducer, const std::vector<ParameterInfo>& parameters, int rank, int step,
              const std::vector<ParamId>& order) {
  for (ParamId p : order) {
    float* g = reducer.gradient(p);
    for (std::size_t i = 0; i < parameters[p].count; ++i) {
      g[i] = gradient_of(rank, p, i, step) + (reducer.accumulate() ? g[i] : 0);
    }
    reducer.mark_ready(p);
  }
}

std::string check_mean(Reducer& reducer, const std::vector<ParameterInfo>& parameters, int world, int from_step,
                       int steps) {
  for (ParamId p : kOrder) {
    for (std::size_t i = 0; i < parameters[p].count; ++i) {
      double expected = 0;
      for (int r = 0; r < world; ++r) {
        for (int s = 0; s < steps; ++s) expected += double(gradient_of(r, p, i, from_step + s));
      }
      RANK_CHECK(std::abs(double(reducer.gradient(p)[i]) - expected / world) < 1e-4);
    }
  }
  return "";
}

std::string train(Communicator& c, bool overlap, bool reversed) {
  const auto parameters = model();
  ReducerOptions options = small_buckets();
  options.overlap = overlap;
  auto made = Reducer::create(c, parameters, kOrder, options);
  RANK_OK(made);
  Reducer& reducer = **made;
  RANK_CHECK(reducer.buckets().size() >= 3);
  RANK_CHECK(reducer.gradient(4) == nullptr);
  std::vector<ParamId> order = kOrder;
  if (reversed) std::reverse(order.begin(), order.end());
  for (int step = 0; step < 5; ++step) {
    reducer.begin(Sync::now);
    RANK_CHECK(!reducer.accumulate());
    backward(reducer, parameters, c.rank(), step, order);
    auto report = reducer.finish();
    RANK_OK(report);
    RANK_CHECK(report->size_bytes == (40 * 30 + 40 + 100 * 77 + 100) * 4);
    const std::string wrong = check_mean(reducer, parameters, c.world_size(), step, 1);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

TEST(Reducer, AveragesGradients) {
  on_all_ranks([](Communicator& c) { return train(c, true, false); });
}
TEST(Reducer, AveragesGradientsInAThread) {
  on_all_ranks([](Communicator& c) { return train(c, true, false); }, Kind::shm_threads);
}
TEST(Reducer, AveragesGradientsBetweenHosts) {
  for (Kind kind : {Kind::tcp, Kind::two_hosts}) {
    on_all_ranks([](Communicator& c) { return train(c, true, false); }, kind);
  }
}
TEST(Reducer, WithoutOverlap) {
  on_all_ranks([](Communicator& c) { return train(c, false, false); });
}
TEST(Reducer, GradientsThatComeInAnotherOrderOnOneRankLeaveInBucketOrder) {
  on_all_ranks([](Communicator& c) { return train(c, true, c.rank() == 1); });
}

TEST(Reducer, NoSyncAddsUpAndReducesOnce) {
  on_all_ranks([](Communicator& c) -> std::string {
    const auto parameters = model();
    auto made = Reducer::create(c, parameters, kOrder, small_buckets());
    RANK_OK(made);
    Reducer& reducer = **made;
    for (int round = 0; round < 2; ++round) {
      const std::uint64_t before = c.sequence();
      for (int micro = 0; micro < 3; ++micro) {
        reducer.begin(micro < 2 ? Sync::later : Sync::now);
        RANK_CHECK(reducer.accumulate() == (micro > 0));
        backward(reducer, parameters, c.rank(), micro, kOrder);
        if (micro < 2) RANK_CHECK(c.sequence() == before);
        RANK_OK(reducer.finish());
      }
      RANK_CHECK(c.sequence() == before + reducer.buckets().size());
      const std::string wrong = check_mean(reducer, parameters, c.world_size(), 0, 3);
      if (!wrong.empty()) return wrong;
    }
    return "";
  });
}

TEST(Reducer, UnusedParameterIsNamedOnEveryRank) {
  const auto outcomes = outcomes_of([](Communicator& c) -> std::string {
    auto made = Reducer::create(c, model(), kOrder, small_buckets());
    RANK_OK(made);
    (*made)->begin(Sync::now);
    for (ParamId p : kOrder) {
      if (c.rank() != 1 || p != 2) (*made)->mark_ready(p);
    }
    auto report = (*made)->finish();
    return report ? "no error" : report.error().message();
  });
  EXPECT_THAT(outcomes[1].text, HasSubstr("1 parameter got no gradient in this step: b.weight"));
  for (const auto& o : outcomes) EXPECT_THAT(o.text, HasSubstr("b.weight"));
}

TEST(Reducer, MarkedTwiceIsAnError) {
  const auto outcomes = outcomes_of([](Communicator& c) -> std::string {
    auto made = Reducer::create(c, model(), kOrder, small_buckets());
    RANK_OK(made);
    (*made)->begin(Sync::now);
    for (ParamId p : kOrder) (*made)->mark_ready(p);
    (*made)->mark_ready(0);
    auto report = (*made)->finish();
    return report ? "no error" : report.error().message();
  });
  for (const auto& o : outcomes) EXPECT_THAT(o.text, HasSubstr("a.weight was marked ready twice"));
}

TEST(Reducer, DifferentModelsAreRefusedWithTheFirstDifference) {
  struct Case {
    std::function<void(std::vector<ParameterInfo>&, ReducerOptions&)> change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto& p, auto&) {
         p[2].shape = {50, 154};
       },
       "parameter 2: rank 0 has b.weight [100, 77] f32, rank 2 has b.weight [50, 154] f32"},
      {[](auto& p, auto&) { p[0].name = "x.weight"; }, "parameter 0: rank 0 has a.weight [40, 30] f32, rank 2 has x"},
      {[](auto& p, auto&) { p.pop_back(); }, "rank 0 has 5 parameters, rank 2 has 4"},
      {[](auto&, auto& o) { o.bucket_cap_mb = 100; }, "bucket 1: rank 0 has"},
  };
  for (const Case& c : cases) {
    const auto outcomes = outcomes_of([&c](Communicator& communicator) -> std::string {
      auto parameters = model();
      ReducerOptions options = small_buckets();
      if (communicator.rank() == 2) c.change(parameters, options);
      auto made = Reducer::create(communicator, parameters, kOrder, options);
      return made ? "no error" : made.error().message();
    });
    for (const auto& o : outcomes) EXPECT_THAT(o.text, HasSubstr(c.message));
  }
}

TEST(Reducer, Rank0sStateGoesToAll) {
  on_all_ranks([](Communicator& c) -> std::string {
    std::vector<std::vector<float>> tensors;
    for (std::size_t n : {3u, 0u, 500u, 400'000u, 7u}) tensors.emplace_back(n, static_cast<float>(c.rank()));
    std::vector<std::int64_t> steps(1, c.rank() + 100);
    if (c.rank() == 0) {
      for (auto& t : tensors) {
        for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<float>(i % 1000) + 0.5f;
      }
    }
    std::vector<Block> blocks;
    for (auto& t : tensors) blocks.push_back(Block{t.data(), t.size(), DType::f32});
    blocks.insert(blocks.begin() + 2, Block{steps.data(), 1, DType::i64});
    RANK_OK(broadcast_state(c, blocks));
    RANK_CHECK(steps[0] == 100);
    for (auto& t : tensors) {
      for (std::size_t i = 0; i < t.size(); ++i) RANK_CHECK(t[i] == static_cast<float>(i % 1000) + 0.5f);
    }
    return "";
  });
}

// What the cast hooks must give, by hand: round, add in f32 in rank order, divide, round.
TEST(CommHook, CastHooksRoundAsTheOracle) {
  for (const char* name : {"fp16", "bf16"}) {
    on_all_ranks([name](Communicator& c) -> std::string {
      const auto parameters = model();
      ReducerOptions options = small_buckets();
      options.compression = name;
      options.force_compression = true;
      auto made = Reducer::create(c, parameters, kOrder, options);
      RANK_OK(made);
      Reducer& reducer = **made;
      const bool f16 = std::string(name) == "fp16";
      const auto round = [f16](float v) { return f16 ? f16_to_f32(f32_to_f16(v)) : bf16_to_f32(f32_to_bf16(v)); };
      const auto value = [](int rank, ParamId p, std::size_t i) {
        return std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank) + static_cast<float>(p)) * 3;
      };
      reducer.begin(Sync::now);
      for (ParamId p : kOrder) {
        for (std::size_t i = 0; i < parameters[p].count; ++i) reducer.gradient(p)[i] = value(c.rank(), p, i);
        reducer.mark_ready(p);
      }
      RANK_OK(reducer.finish());
      for (ParamId p : kOrder) {
        for (std::size_t i = 0; i < parameters[p].count; ++i) {
          float sum = round(value(0, p, i));
          for (int r = 1; r < c.world_size(); ++r) sum += round(value(r, p, i));
          RANK_CHECK(reducer.gradient(p)[i] == round(sum / static_cast<float>(c.world_size())));
        }
      }
      return "";
    });
  }
}

TEST(CommHook, InfSurvivesOnEveryRank) {
  on_all_ranks([](Communicator& c) -> std::string {
    ReducerOptions options = small_buckets();
    options.compression = "fp16";
    options.force_compression = true;
    auto made = Reducer::create(c, model(), kOrder, options);
    RANK_OK(made);
    (*made)->begin(Sync::now);
    if (c.rank() == 1) (*made)->gradient(0)[5] = 1e30f;
    for (ParamId p : kOrder) (*made)->mark_ready(p);
    RANK_OK((*made)->finish());
    RANK_CHECK(std::isinf((*made)->gradient(0)[5]));
    return "";
  });
}

TEST(CommHook, UsedBetweenHostsAndOnOneHostOnlyIfForced) {
  for (Kind kind : {Kind::shm, Kind::tcp, Kind::two_hosts}) {
    on_all_ranks(
        [kind](Communicator& c) -> std::string {
          ReducerOptions options = small_buckets();
          options.compression = "bf16";
          auto made = Reducer::create(c, model(), kOrder, options);
          RANK_OK(made);
          (*made)->begin(Sync::now);
          for (std::size_t i = 0; i < 10; ++i) (*made)->gradient(0)[i] = 1.001f;
          for (ParamId p : kOrder) (*made)->mark_ready(p);
          RANK_OK((*made)->finish());
          const float mean = (*made)->gradient(0)[3];
          RANK_CHECK(kind == Kind::shm ? std::abs(mean - 1.001f) < 1e-6f : mean == 1.0f);  // 1.001 is no bf16
          return "";
        },
        kind);
  }
}

TEST(CommHook, PowerSgdIsExactForLowRankAndItsErrorComesBack) {
  on_all_ranks([](Communicator& c) -> std::string {
    const auto parameters = model();
    ReducerOptions options = small_buckets();
    options.compression = "powersgd:2";
    options.force_compression = true;
    auto made = Reducer::create(c, parameters, kOrder, options);
    RANK_OK(made);
    Reducer& reducer = **made;
    // The same full-rank gradient in each step: what the steps have sent must converge to it, thanks to the feedback.
    const auto full = [](std::size_t i) { return std::sin(static_cast<float>(i * i) * 0.013f); };
    std::vector<double> sent(parameters[0].count, 0.0);
    double first_error = 0, last_error = 0, norm = 0;
    constexpr int kSteps = 40;
    for (int step = 1; step <= kSteps; ++step) {
      reducer.begin(Sync::now);
      for (ParamId p : kOrder) {
        for (std::size_t i = 0; i < parameters[p].count; ++i) {
          const std::size_t columns =
              parameters[p].shape.size() > 1 ? static_cast<std::size_t>(parameters[p].shape[1]) : 1;
          // b.weight has rank 1 and differs between ranks by a factor; a.weight is the full-rank one.
          reducer.gradient(p)[i] = p == 2 ? static_cast<float>(c.rank() + 1) * static_cast<float>(i / columns % 9) *
                                                static_cast<float>(i % columns % 5)
                                          : full(i);
        }
        reducer.mark_ready(p);
      }
      RANK_OK(reducer.finish());
      for (std::size_t i = 0; i < parameters[2].count; ++i) {
        const double exact = 2.0 * double(i / 77 % 9) * double(i % 77 % 5);  // mean of 1, 2, 3
        RANK_CHECK(std::abs(double(reducer.gradient(2)[i]) - exact) < 1e-3 * (1 + exact));
      }
      for (std::size_t i = 0; i < parameters[1].count; ++i)
        RANK_CHECK(std::abs(reducer.gradient(1)[i] - full(i)) < 1e-6f);
      double error = 0;
      norm = 0;
      for (std::size_t i = 0; i < sent.size(); ++i) {
        sent[i] += double(reducer.gradient(0)[i]);
        const double d = sent[i] / step - double(full(i));
        error += d * d;
        norm += double(full(i)) * double(full(i));
      }
      if (step == 1) first_error = error;
      last_error = error;
    }
    RANK_CHECK(first_error > 0.1 * norm);  // rank 2 cannot hold it
    RANK_CHECK(last_error < 0.2 * first_error);
    return "";
  });
}

TEST(CommHook, UnknownCompressionIsRefused) {
  EXPECT_THAT(make_hook("zip").error().message(), HasSubstr("none, fp16, bf16, powersgd"));
  EXPECT_FALSE(make_hook("powersgd:0"));
  EXPECT_FALSE(make_hook("powersgd:2x"));
  EXPECT_TRUE(make_hook("powersgd:4"));
}

TEST(SyncMetrics, SumAndMaxAndEqual) {
  on_all_ranks([](Communicator& c) -> std::string {
    double values[] = {1.5, double(c.rank())};
    RANK_OK(sync_metrics(c, values, comm::Reduce::sum));
    RANK_CHECK(values[0] == 1.5 * c.world_size());
    RANK_OK(sync_metrics(c, values, comm::Reduce::max));
    RANK_OK(check_equal(c, "steps", 100));
    Result<void> unequal = check_equal(c, "steps", c.rank() == 2 ? 99 : 100);
    RANK_CHECK(!unequal);
    RANK_CHECK(unequal.error().message() == "steps: rank 0 has 100, rank 2 has 99");
    return "";
  });
}

}  // namespace
}  // namespace ddprun::ddp
