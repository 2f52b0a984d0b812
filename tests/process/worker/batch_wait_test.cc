// Ranks that wait for their data, and for each other, in a step of several micro-batches.
#include "worker/ranks/batch_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/comm_ranks.h"

namespace ddprun::trainer {
namespace {

using ddprun::testing::Kind;
using ddprun::testing::RankContext;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{2000};
constexpr milliseconds kWork{750};  // of a micro-batch; the four of a step take longer than kTimeout
constexpr int kMicroBatches = 4;

class SlowDataset final : public data::Dataset {
 public:
  SlowDataset() { spec_.input_shape = {1}; }
  std::int64_t size() const override { return 100; }
  const data::SampleSpec& spec() const override { return spec_; }
  Result<void> read(const data::SampleKey& key, std::byte* input, std::byte* target) const override {
    if (key.index == slow) std::this_thread::sleep_for(takes);
    std::memset(input, 0, sizeof(float));
    std::memset(target, 0, sizeof(float));
    return {};
  }
  std::string name_of(std::int64_t index) const override { return std::to_string(index); }

  std::int64_t slow = -1;
  milliseconds takes{0};

 private:
  data::SampleSpec spec_;
};

// One step; what became of it.
std::string step(comm::Communicator& communicator, std::int64_t slow, bool fails, bool computes) {
  auto dataset = std::make_shared<SlowDataset>();
  dataset->slow = slow;
  dataset->takes = kTimeout / 2;
  data::LoaderOptions options;
  options.batch_size = 1;
  options.num_workers = 1;
  auto loader = data::Loader::create(dataset, options);
  RANK_OK(loader);
  std::vector<std::int64_t> indices(kMicroBatches);
  for (int i = 0; i < kMicroBatches; ++i) indices[static_cast<std::size_t>(i)] = i;
  RANK_OK((*loader)->begin_epoch(0, indices));
  SlowRead slow_read(communicator.rank(), kTimeout);
  BatchWait wait(communicator, **loader, kTimeout, slow_read, [] { return false; });
  wait.begin_step();
  for (int i = 0; i < kMicroBatches; ++i) {
    auto there = wait.wait(i + 1 < kMicroBatches ? Meet::later : Meet::now);
    if (!there) return there.error().message();
    if (there->outcome == BatchOutcome::failed) return there->mine ? "another failed" : "failed";
    auto batch = (*loader)->next();
    RANK_OK(batch);
    if (fails && i == 0) {
      auto told = wait.give_up();
      return told ? "gave up" : told.error().message();
    }
    if (computes) std::this_thread::sleep_for(kWork);
  }
  return "done";
}

std::vector<std::string> outcomes_of(const std::function<std::string(comm::Communicator&)>& rank) {
  const auto outcomes = ddprun::testing::run_ranks(
      2,
      [&](RankContext& context) -> std::string {
        auto communicator = ddprun::testing::make_test_communicator(Kind::shm, context, kTimeout);
        RANK_OK(communicator);
        return rank(**communicator);
      },
      std::chrono::seconds(60));
  std::vector<std::string> texts;
  for (const auto& outcome : outcomes) texts.push_back(outcome.text);
  return texts;
}

using Texts = std::vector<std::string>;

// Rank 1 waits for a read while rank 0 computes for longer than a collective may take.
TEST(BatchWait, ASlowReadMeetsALongStep) {
  const auto texts =
      outcomes_of([](comm::Communicator& c) { return step(c, c.rank() == 1 ? 0 : -1, false, c.rank() == 0); });
  EXPECT_EQ(texts, (Texts{"done", "done"}));
}

// Rank 0 is at the step's last micro-batch long before rank 1.
TEST(BatchWait, ARankThatComputesLongerIsWaitedFor) {
  const auto texts = outcomes_of([](comm::Communicator& c) { return step(c, -1, false, c.rank() == 1); });
  EXPECT_EQ(texts, (Texts{"done", "done"}));
}

TEST(BatchWait, WhoGivesUpWithinAStepIsHeard) {
  const auto texts = outcomes_of([](comm::Communicator& c) { return step(c, -1, c.rank() == 1, c.rank() == 0); });
  EXPECT_EQ(texts, (Texts{"another failed", "gave up"}));
}

}  // namespace
}  // namespace ddprun::trainer
