#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/comm_nccl_fake.h"
#include "tests/support/comm_ranks.h"
#include "worker/comm/factory.h"
#include "worker/device/backend.h"
#include "worker/device/device_context.h"
#include "worker/kernels/kernels.h"

// A GPU job of 4 ranks on two nodes as the factory makes it, with the real way between the processes and a fake NCCL on
// each: the id comes from rank 0, and what goes wrong on one rank is known to all.
namespace ddprun::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::RankOutcome;

class FakeBackend final : public cuda::DeviceBackend {
 public:
  std::string versions() const override { return "fake"; }
  Result<int> device_count() override { return device.devices; }
  Result<cuda::DeviceContext*> open(int rank, int local_rank) override {
    auto opened = cuda::DeviceContext::open(device, rank, local_rank);
    if (!opened) return opened.error();
    context = std::move(opened).value();
    return context.get();
  }
  cuda::NcclApi& nccl() override { return *api; }
  Result<std::unique_ptr<engine::Kernels>> make_kernels(DType, bool) override {
    return Error(Errc::not_found, "no kernels here");
  }
  void cast(DType, DType, const void*, void*, std::int64_t) override {}

  testing::NcclLog log;
  testing::FakeDevice device{log};
  std::unique_ptr<testing::FakeNccl> api = std::make_unique<testing::FakeNccl>(log);
  std::unique_ptr<cuda::DeviceContext> context;
};

WorkerEnv environment(const RankContext& context) {
  WorkerEnv env;
  env.rank = Rank{context.rank};
  env.slice.world_size = context.size;
  env.local_world_size = 2;
  env.local_rank = LocalRank{context.rank % 2};
  env.slice.group_rank = GroupRank{context.rank / 2};
  env.slice.group_world_size = context.size / 2;
  return env;
}

CommOptions patience(std::chrono::milliseconds limit = std::chrono::seconds(50)) {
  CommOptions options;
  options.address = "127.0.0.1";
  options.timeout = options.connect_timeout = limit;
  return options;
}

using Body = std::function<std::string(RankContext&, FakeBackend&)>;
std::vector<RankOutcome> run(const Body& body) {
  return testing::run_ranks(4, [&body](RankContext& context) -> std::string {
    FakeBackend gpu;
    return body(context, gpu);
  });
}

// Makes the communicator; its error, or "".
std::string make(RankContext& context, FakeBackend& gpu, const CommOptions& options) {
  auto made = make_communicator(environment(context), options, context.store, &gpu);
  return made ? "" : made.error().message();
}

TEST(CommNccl, OneCommunicatorOverAllRanksOfAllNodes) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    gpu.api->mark = static_cast<char>('a' + context.rank);
    gpu.log.in_progress["init_rank"] = 3;
    auto made = make_communicator(environment(context), patience(), context.store, &gpu);
    RANK_OK(made);
    Communicator& c = **made;
    RANK_CHECK(c.description() == "NCCL 9.9.9, 4 ranks");
    RANK_CHECK(c.device_memory() && c.crosses_hosts());
    RANK_CHECK(gpu.api->joined.front() == 'a' && gpu.api->joined.back() == 'a');  // rank 0's
    auto memory = c.allocate(4000);
    RANK_OK(memory);
    RANK_OK(c.all_reduce(Block{*memory, 1000, DType::f32}, Reduce::avg).wait());
    std::int64_t on_host = context.rank;
    RANK_OK(c.all_reduce(Block{&on_host, 1, DType::i64}, Reduce::sum).wait());
    RANK_CHECK(on_host == 6);
    const std::vector<std::string>& calls = gpu.log.calls;
    for (const std::string& call : {"init_rank " + std::to_string(context.rank) + "/4", std::string("register"),
                                    std::string("all_reduce 1000 f32 avg")}) {
      RANK_CHECK(std::find(calls.begin(), calls.end(), call) != calls.end());
    }
    RANK_CHECK(std::count(calls.begin(), calls.end(), "get_unique_id") == (context.rank == 0 ? 1 : 0));
    RANK_OK(c.barrier());
    return "";
  });
  EXPECT_EQ(testing::problems(outcomes), "");
}

// Rank 0's NCCL, up to something.
class BadRoot final : public testing::FakeNccl {
 public:
  BadRoot(testing::NcclLog& log, std::function<void()> deed) : FakeNccl(log), deed_(std::move(deed)) {}
  int get_unique_id(cuda::NcclUniqueId* id) override {
    deed_();
    return FakeNccl::get_unique_id(id);
  }

 private:
  std::function<void()> deed_;
};

TEST(CommNccl, RootThatDiesBeforeItsIdIsNamedToAll) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    if (context.rank == 0) gpu.api = std::make_unique<BadRoot>(gpu.log, [] { ::raise(SIGKILL); });
    return make(context, gpu, patience());
  });
  for (int r : {1, 2, 3}) {
    EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].text,
                AllOf(HasSubstr("NCCL's unique id from rank 0"), HasSubstr("rank 0 died")));
  }
}

TEST(CommNccl, SilentRootIsNamedToAllAtTheDeadline) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    if (context.rank == 0) {
      KeyValue* store = context.store;
      gpu.api = std::make_unique<BadRoot>(gpu.log, [store] {
        for (const char* key : {"done/1", "done/2", "done/3"}) {
          (void)store->get(key, SteadyClock::now() + std::chrono::seconds(50));
        }
      });
    }
    const std::string text = make(context, gpu, patience(std::chrono::milliseconds(1500)));
    RANK_OK(context.store->set("done/" + std::to_string(context.rank), "1"));
    return text;
  });
  for (int r : {1, 2, 3}) {
    EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].text,
                AllOf(HasSubstr("NCCL's unique id from rank 0"), HasSubstr("missing ranks: 0")));
  }
}

TEST(CommNccl, RootThatCannotMakeAnIdTellsAllWhy) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    if (context.rank == 0) gpu.log.fail["get_unique_id"] = cuda::NcclApi::kSystemError;
    return make(context, gpu, patience());
  });
  for (const auto& o : outcomes) EXPECT_THAT(o.text, AllOf(HasSubstr("ncclGetUniqueId"), HasSubstr("firewall")));
}

TEST(CommNccl, MissingDeviceOfOneRankIsToldToAll) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    if (context.rank == 3) gpu.device.devices = 1;
    return make(context, gpu, patience());
  });
  for (const auto& o : outcomes) EXPECT_THAT(o.text, HasSubstr("rank 3: LOCAL_RANK 1 but only 1 CUDA device"));
}

TEST(CommNccl, RankWithoutAGpuAmongRanksWithOneIsAnError) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    auto made = make_communicator(environment(context), patience(), context.store, context.rank == 2 ? nullptr : &gpu);
    return made ? "no error" : made.error().message();
  });
  for (const auto& o : outcomes) EXPECT_THAT(o.text, HasSubstr("rank 0 has a GPU, rank 2 found none"));
}

TEST(CommNccl, InitialisationThatFailsOnOneRankIsToldToAll) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    gpu.log.in_progress["init_rank"] = context.rank == 1 ? 3 : 1'000'000;
    if (context.rank == 1) gpu.log.fail["init_rank"] = cuda::NcclApi::kInvalidUsage;
    return make(context, gpu, patience());
  });
  for (const auto& o : outcomes) {
    EXPECT_THAT(o.text, AllOf(HasSubstr("NCCL on rank 1: ncclCommInitRankConfig"), HasSubstr("two ranks use one GPU")));
  }
}

// NCCL leaves the others waiting in their kernels; they hear of it through the host's way, and abort theirs.
TEST(CommNccl, AsyncErrorOfOneRankReachesAllWithItsRemedy) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    auto made = make_communicator(environment(context), patience(), context.store, &gpu);
    RANK_OK(made);
    auto memory = (*made)->allocate(64);
    RANK_OK(memory);
    gpu.log.stuck = true;  // kernels do not end
    Work work = (*made)->all_reduce(Block{*memory, 16, DType::f32}, Reduce::sum);
    if (context.rank == 2) {
      gpu.log.async = cuda::NcclApi::kRemoteError;
      gpu.api->last = "Connection closed by remote peer";
    }
    Result<void> ok = work.wait();
    RANK_CHECK(gpu.log.calls.back() == "abort");
    gpu.log.stuck = false;  // aborted kernels end
    return ok ? "no error" : ok.error().message();
  });
  for (const auto& o : outcomes) {
    EXPECT_THAT(o.text, AllOf(HasSubstr("NCCL on rank 2: all_reduce #0 of 16 f32"),
                              HasSubstr("Connection closed by remote peer"), HasSubstr("NCCL_SOCKET_IFNAME")));
  }
}

TEST(CommNccl, DifferentCollectivesAreNamedAtTheDeadline) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    auto made = make_communicator(environment(context), patience(), context.store, &gpu);
    RANK_OK(made);
    auto memory = (*made)->allocate(64);
    RANK_OK(memory);
    gpu.log.stuck = true;
    const std::size_t count = context.rank == 3 ? 8 : 16;
    Work work = (*made)->all_reduce(Block{*memory, count, DType::f32}, Reduce::sum);
    Result<void> ok = work.wait_until(SteadyClock::now() + std::chrono::milliseconds(300));
    gpu.log.stuck = false;
    return ok ? "no error" : ok.error().message();
  });
  for (const auto& o : outcomes) {
    EXPECT_THAT(o.text, AllOf(HasSubstr("ranks disagree"), HasSubstr("all_reduce #0 of 8 f32"),
                              HasSubstr("all_reduce #0 of 16 f32")));
  }
}

TEST(CommNccl, RebuiltInTheSameProcessesUnderANewRound) {
  const auto outcomes = run([](RankContext& context, FakeBackend& gpu) -> std::string {
    for (int round = 0; round < 3; ++round) {
      gpu.api->mark = static_cast<char>('a' + round);
      WorkerEnv env = environment(context);
      env.slice.restart_count = round;
      auto made = make_communicator(env, patience(), context.store, &gpu);
      RANK_OK(made);
      RANK_CHECK(gpu.api->joined.front() == 'a' + round);
      RANK_OK((*made)->barrier());
      // An abort also ends a barrier that others have not left yet: not before all have.
      const auto left = [round](int rank) { return "left/" + std::to_string(round) + "/" + std::to_string(rank); };
      RANK_OK(context.store->set(left(context.rank), "1"));
      for (int r = 0; r < context.size && context.rank == round; ++r) {
        RANK_OK(context.store->get(left(r), SteadyClock::now() + std::chrono::seconds(50)));
      }
      if (context.rank == round) (*made)->abort("next round");
      Result<void> ended = (*made)->barrier();
      RANK_CHECK(!ended && ended.error().message().find("next round") != std::string::npos);
    }
    return "";
  });
  EXPECT_EQ(testing::problems(outcomes), "");
}

}  // namespace
}  // namespace ddprun::comm
