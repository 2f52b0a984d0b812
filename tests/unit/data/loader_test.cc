#include "worker/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <thread>

#include "worker/data/sample_random.h"

namespace ddprun::data {
namespace {

using ::testing::HasSubstr;

// Values that depend on the whole key, with uneven work per sample.
class FakeDataset final : public Dataset {
 public:
  explicit FakeDataset(std::int64_t features = 3) {
    spec_.input_shape = {features};
    spec_.classes = 10;
  }
  std::int64_t size() const override { return 1000; }
  const SampleSpec& spec() const override { return spec_; }
  Result<void> read(const SampleKey& key, std::byte* input, std::byte* target) const override {
    if (key.index == broken) return Error(Errc::malformed, name_of(key.index) + ": broken");
    // Until the test has seen its timeout; the bound is for a test that fails.
    for (int i = 0; key.index == slow && !released && i < 60'000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (key.index == slow) left = true;
    if (key.index == throws) throw std::bad_alloc();
    SampleRandom random(key);
    auto* out = reinterpret_cast<float*>(input);
    for (int i = 0; i < 3; ++i) out[i] = static_cast<float>(random.uniform());
    for (int spin = 0; spin < (key.index % 7) * 200; ++spin) random.next();
    *reinterpret_cast<std::int32_t*>(target) = static_cast<std::int32_t>(key.index % 10);
    return {};
  }
  std::string name_of(std::int64_t index) const override { return "fake " + std::to_string(index); }

  std::int64_t broken = -1;
  std::int64_t slow = -1;
  std::int64_t throws = -1;
  std::atomic<bool> released{false};
  mutable std::atomic<bool> left{false};  // the slow read has come back

 private:
  SampleSpec spec_;
};

LoaderOptions options(int workers, std::int64_t batch = 4) {
  LoaderOptions o;
  o.batch_size = batch;
  o.num_workers = workers;
  o.seed = 11;
  return o;
}

std::unique_ptr<Loader> make(std::shared_ptr<const Dataset> dataset, const LoaderOptions& o) {
  return Loader::create(std::move(dataset), o).value();
}

std::vector<std::int64_t> first(std::int64_t n) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(n));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

std::string all_bytes(Loader& loader, std::vector<std::int64_t>* sizes = nullptr) {
  std::string bytes;
  for (;;) {
    auto batch = loader.next();
    EXPECT_TRUE(batch) << batch.error().message();
    if (!batch || *batch == nullptr) return bytes;
    if (sizes != nullptr) sizes->push_back((*batch)->size);
    bytes.append(reinterpret_cast<const char*>((*batch)->inputs), static_cast<std::size_t>((*batch)->size) * 12);
    bytes.append(reinterpret_cast<const char*>((*batch)->targets), static_cast<std::size_t>((*batch)->size) * 4);
  }
}

TEST(Loader, GivesTheSameBatchesForAnyNumberOfThreads) {
  const auto dataset = std::make_shared<const FakeDataset>();
  auto none = make(dataset, options(0));
  ASSERT_TRUE(none->begin_epoch(2, first(103)));
  EXPECT_EQ(none->batches(), 26);
  std::vector<std::int64_t> sizes;
  const std::string expected = all_bytes(*none, &sizes);
  EXPECT_EQ(sizes.back(), 3);
  for (const int workers : {1, 2, 5}) {
    for (const bool persistent : {true, false}) {
      LoaderOptions o = options(workers);
      o.persistent_workers = persistent;
      auto loader = make(dataset, o);
      for (int again = 0; again < 3; ++again) {
        ASSERT_TRUE(loader->begin_epoch(2, first(103)));
        EXPECT_EQ(all_bytes(*loader), expected);
      }
      ASSERT_TRUE(loader->begin_epoch(3, first(103)));
      EXPECT_NE(all_bytes(*loader), expected);
    }
  }
}

TEST(Loader, AnEpochMayBeLeftInTheMiddle) {
  auto loader = make(std::make_shared<const FakeDataset>(), options(3));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(loader->begin_epoch(i, first(50)));
    ASSERT_TRUE(loader->next());
  }
  ASSERT_TRUE(loader->begin_epoch(99, first(8)));
  EXPECT_EQ(all_bytes(*loader).size(), 8U * 16);
}

TEST(Loader, ABrokenSampleIsAnErrorOfItsOwnBatch) {
  const auto dataset = std::make_shared<FakeDataset>();
  dataset->broken = 9;
  for (const int workers : {0, 1, 3}) {
    auto loader = make(dataset, options(workers));
    ASSERT_TRUE(loader->begin_epoch(0, first(20)));
    EXPECT_TRUE(loader->next());
    EXPECT_TRUE(loader->next());
    auto third = loader->next();
    ASSERT_FALSE(third);
    EXPECT_THAT(third.error().message(), HasSubstr("fake 9: broken"));
  }
}

// Polls for 60 s at most.
bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 60'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

// A read that hangs: the consumer hears of it, and neither the next epoch nor the end waits for it.
TEST(Loader, ATimeoutNamesTheSlowSample) {
  for (const int workers : {0, 1, 3}) {
    const auto dataset = std::make_shared<FakeDataset>();
    dataset->slow = 5;
    LoaderOptions o = options(workers);
    o.timeout = std::chrono::seconds(1);  // the first batch must make it on a busy machine
    o.grace = std::chrono::milliseconds(50);
    auto loader = make(dataset, o);
    ASSERT_TRUE(loader->begin_epoch(0, first(20)));
    ASSERT_TRUE(loader->next());
    auto second = loader->next();
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Errc::timed_out);
    EXPECT_THAT(second.error().message(), HasSubstr("batch 2 of epoch 1 was not read within"));
    EXPECT_THAT(second.error().message(), HasSubstr("fake 5"));
    auto again = loader->begin_epoch(1, first(20));
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message(), HasSubstr("fake 5"));
    loader.reset();
    EXPECT_FALSE(dataset->left) << "the loader waited for a read that hangs";
    dataset->released = true;  // the thread that was left behind ends, and frees what it shared
    EXPECT_TRUE(eventually([&dataset] { return dataset.use_count() == 1; }));
  }
}

TEST(Loader, WaitsByParts) {
  const auto dataset = std::make_shared<FakeDataset>();
  dataset->slow = 5;
  auto loader = make(dataset, options(1));
  ASSERT_TRUE(loader->begin_epoch(0, first(8)));
  ASSERT_TRUE(loader->next());
  auto there = loader->wait(std::chrono::milliseconds(1));
  ASSERT_TRUE(there);
  EXPECT_FALSE(*there);
  ASSERT_TRUE(eventually([&loader] { return loader->in_work() == "fake 5"; })) << loader->in_work();
  dataset->released = true;
  ASSERT_TRUE(eventually([&loader] { return loader->wait(std::chrono::milliseconds(1)).value(); }));
  auto second = loader->next();
  ASSERT_TRUE(second && *second != nullptr);
  EXPECT_EQ((*second)->indices[0], 4);
  EXPECT_TRUE(*loader->wait(std::chrono::milliseconds(0))) << "after the last batch there is nothing to wait for";
}

TEST(Loader, AnExceptionInAReadIsAnErrorOfItsSample) {
  const auto dataset = std::make_shared<FakeDataset>();
  dataset->throws = 2;
  auto loader = make(dataset, options(2));
  ASSERT_TRUE(loader->begin_epoch(0, first(8)));
  auto batch = loader->next();
  ASSERT_FALSE(batch);
  EXPECT_THAT(batch.error().message(), HasSubstr("fake 2: no memory left"));
}

TEST(Loader, BatchesThatDoNotFitAreAnErrorWithTheSizes) {
  auto loader = Loader::create(std::make_shared<const FakeDataset>(std::int64_t{1} << 50), options(2));
  ASSERT_FALSE(loader);
  EXPECT_THAT(loader.error().message(), HasSubstr("no memory for batches: 5 x 18014398509.5 MB (data.batch_size 4"));
  // No more is taken than the samples that there are.
  EXPECT_TRUE(Loader::create(std::make_shared<const FakeDataset>(), options(2, std::int64_t{1} << 50)));
}

}  // namespace
}  // namespace ddprun::data
