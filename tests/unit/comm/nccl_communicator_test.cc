#include "worker/comm/nccl_communicator.h"
#include "worker/comm/nccl_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/comm_nccl_fake.h"
#include "worker/comm/self_transport.h"

// Our side of NCCL against a fake that records the order of calls and fails on command.
namespace ddprun::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using testing::FakeDevice;
using testing::FakeNccl;

class Nccl : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Communicator>> make(std::chrono::milliseconds patience = std::chrono::seconds(20)) {
    NcclSetup setup = setup_of(nccl);
    setup.timeout = patience;
    return make_nccl_communicator(setup, NcclUniqueId{}, host(), SteadyClock::now() + patience);
  }
  NcclSetup setup_of(NcclApi& api) {
    NcclSetup setup;
    setup.nccl = &api;
    setup.device = &device;
    setup.compute = FakeDevice::kCompute;
    setup.communication = FakeDevice::kCommunication;
    return setup;
  }
  static std::unique_ptr<QueuedCommunicator> host() {
    return std::make_unique<QueuedCommunicator>(make_self_transport(), QueuedCommunicator::Options{});
  }
  std::unique_ptr<Communicator> made() {
    auto c = make();
    EXPECT_TRUE(c) << c.error().message();
    return std::move(c).value();
  }
  Block device_block(Communicator& c, std::size_t count) {
    auto memory = c.allocate(count * 4);
    EXPECT_TRUE(memory);
    return Block{*memory, count, DType::f32};
  }

  testing::NcclLog log;
  FakeDevice device{log};
  FakeNccl nccl{log};
};

TEST_F(Nccl, InitialisationIsPolledUntilNcclIsReady) {
  log.in_progress["init_rank"] = 5;
  auto c = made();
  EXPECT_EQ(c->description(), "NCCL 9.9.9, 1 ranks");
  EXPECT_THAT(log.calls, ElementsAre("init_rank 0/1"));
}

TEST_F(Nccl, InitialisationThatDoesNotEndIsAbortedAtTheDeadline) {
  log.in_progress["init_rank"] = 1'000'000;
  auto c = make(std::chrono::milliseconds(50));
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().code(), Errc::timed_out);
  EXPECT_THAT(c.error().message(),
              AllOf(HasSubstr("ncclCommInitRankConfig did not end in time"), HasSubstr("firewall")));
  EXPECT_THAT(log.calls, ElementsAre("init_rank 0/1", "abort"));
}

TEST_F(Nccl, CollectiveWaitsForComputeAndRecordsItsEnd) {
  auto c = made();
  const Block block = device_block(*c, 8);
  log.calls.clear();
  log.in_progress["all_reduce"] = 3;
  Work work = c->all_reduce(block, Reduce::avg);
  EXPECT_THAT(log.calls,
              ElementsAre("record compute", "wait communication", "all_reduce 8 f32 avg", "record communication"));
  EXPECT_TRUE(work.wait());
  EXPECT_TRUE(work.done());
  EXPECT_EQ(c->live_works(), 1u);
  work = Work();
  EXPECT_EQ(c->live_works(), 0u);
}

TEST_F(Nccl, AllCollectivesReachNccl) {
  auto c = made();
  const Block block = device_block(*c, 8);
  log.calls.clear();
  EXPECT_TRUE(c->broadcast(block, 0).wait());
  EXPECT_TRUE(c->all_gather(block, block).wait());
  EXPECT_TRUE(c->reduce_scatter(block, block, Reduce::sum).wait());
  EXPECT_THAT(log.calls, ::testing::IsSupersetOf({"broadcast 8 from 0", "all_gather 8", "reduce_scatter 8"}));
}

TEST_F(Nccl, OwnedMemoryIsZeroedAndRegistered) {
  auto c = made();
  const Block block = device_block(*c, 16);
  EXPECT_EQ(static_cast<float*>(block.data)[15], 0.0f);
  EXPECT_THAT(log.calls, ::testing::IsSupersetOf({"allocate", "register", "memset"}));
  c.reset();
  EXPECT_THAT(log.calls, ::testing::IsSupersetOf({"deregister", "finalize", "destroy", "free"}));
  EXPECT_THAT(log.device_memory, IsEmpty());
  EXPECT_EQ(device.live_events, 0);
}

TEST_F(Nccl, HostMemoryDoesNotGoToNccl) {
  auto c = made();
  log.calls.clear();
  double loss = 2.5;
  EXPECT_TRUE(c->all_reduce(Block{&loss, 1, DType::f64}, Reduce::sum).wait());
  EXPECT_EQ(loss, 2.5);
  EXPECT_THAT(log.calls, IsEmpty());
}

// After an illegal access no call knows anything any more: device memory must not be taken for the host's then.
TEST_F(Nccl, AFailedDeviceIsNotReadAsHostMemory) {
  auto c = made();
  const Block block = device_block(*c, 8);
  log.fail["pointer_device"] = log.fail["record"] = 700;
  Result<void> ok = c->all_reduce(block, Reduce::sum).wait();
  ASSERT_FALSE(ok);
  EXPECT_THAT(ok.error().message(), AllOf(HasSubstr("CUDA on rank 0"), HasSubstr("cuda text (700)")));
}

TEST_F(Nccl, ErrorsOfCallsComeWithTheirRemedy) {
  struct Case {
    int status;
    std::string last;
    Errc code;
    std::string remedy;
  };
  for (const Case& k :
       {Case{NcclApi::kInvalidUsage, "", Errc::invalid_argument, "the ranks disagree"},
        Case{NcclApi::kRemoteError, "Broken pipe", Errc::peer_closed, "firewall"},
        Case{NcclApi::kSystemError, "Connection reset by peer", Errc::system, "NCCL_SOCKET_IFNAME"},
        Case{NcclApi::kUnhandledCudaError, "Cuda failure 'out of memory'", Errc::system, "no memory left"},
        Case{NcclApi::kUnhandledCudaError, "Cuda failure", Errc::system, "driver and CUDA toolkit"},
        Case{NcclApi::kInternalError, "", Errc::system, "NCCL_DEBUG=INFO"}}) {
    log = testing::NcclLog();
    auto c = made();
    const Block block = device_block(*c, 8);
    log.fail["all_reduce"] = k.status;
    nccl.last = k.last;
    Result<void> ok = c->all_reduce(block, Reduce::sum).wait();
    ASSERT_FALSE(ok);
    EXPECT_EQ(ok.error().code(), k.code);
    EXPECT_THAT(ok.error().message(),
                AllOf(HasSubstr("rank 0"), HasSubstr("all_reduce #0 of 8 f32"),
                      HasSubstr("nccl text " + std::to_string(k.status)), HasSubstr(k.last), HasSubstr(k.remedy)));
    EXPECT_EQ(log.calls.back(), "abort");
    // The same answer from then on, and NCCL is left alone.
    const std::size_t calls = log.calls.size();
    EXPECT_EQ(c->all_reduce(block, Reduce::sum).wait().error().message(), ok.error().message());
    EXPECT_EQ(log.calls.size(), calls);
  }
}

TEST_F(Nccl, AsyncErrorEndsAWait) {
  auto c = made();
  const Block block = device_block(*c, 8);
  log.stuck = true;
  Work work = c->all_reduce(block, Reduce::sum);
  log.async = NcclApi::kRemoteError;
  nccl.last = "Connection closed by remote peer";
  Result<void> ok = work.wait();
  ASSERT_FALSE(ok);
  EXPECT_EQ(ok.error().code(), Errc::peer_closed);
  EXPECT_EQ(log.calls.back(), "abort");
}

TEST_F(Nccl, WaitEndsAtItsDeadline) {
  auto c = made();
  const Block block = device_block(*c, 8);
  log.stuck = true;
  Work work = c->all_reduce(block, Reduce::sum);
  EXPECT_FALSE(work.done());
  Result<void> ok = work.wait_until(SteadyClock::now() + std::chrono::milliseconds(30));
  ASSERT_FALSE(ok);
  EXPECT_EQ(ok.error().code(), Errc::timed_out);
  EXPECT_THAT(ok.error().message(), AllOf(HasSubstr("all_reduce #0 of 8 f32"), HasSubstr("where all ranks are")));
  EXPECT_EQ(log.calls.back(), "abort");
}

TEST_F(Nccl, AbortFromAnotherThreadWakesTheWaiter) {
  auto c = made();
  const Block block = device_block(*c, 8);
  log.stuck = true;
  Work work = c->all_reduce(block, Reduce::sum);
  std::thread aborter([&c] { c->abort("enough"); });
  Result<void> ok = work.wait();
  aborter.join();
  ASSERT_FALSE(ok);
  EXPECT_EQ(ok.error().code(), Errc::cancelled);
  EXPECT_THAT(ok.error().message(), HasSubstr("enough"));
}

// Takes its time in a collective, and sees whether the communicator is freed meanwhile.
class SlowNccl final : public FakeNccl {
 public:
  using FakeNccl::FakeNccl;
  int all_reduce(const void*, void*, std::size_t, DType, Reduce, NcclComm, NcclStream) override {
    inside = true;
    for (int i = 0; i < 100 && !aborted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    freed_inside = aborted.load();
    return 0;
  }
  int abort(NcclComm) override { return aborted = true, 0; }
  std::atomic<bool> inside{false}, aborted{false};
  bool freed_inside = false;
};

TEST_F(Nccl, AbortFromAnotherThreadFreesNothingInsideACall) {
  SlowNccl slow(log);
  auto c =
      make_nccl_communicator(setup_of(slow), NcclUniqueId{}, host(), SteadyClock::now() + std::chrono::seconds(20));
  ASSERT_TRUE(c) << c.error().message();
  const Block block = device_block(**c, 8);
  std::thread other([&] {
    while (!slow.inside) std::this_thread::yield();
    (*c)->abort("enough");
  });
  Work work = (*c)->all_reduce(block, Reduce::sum);
  other.join();
  EXPECT_FALSE(slow.freed_inside);
  EXPECT_TRUE(slow.aborted);
  Result<void> ended = work.wait();
  (void)ended;  // the device had done its part or not: both are right
  EXPECT_THAT((*c)->all_reduce(block, Reduce::sum).wait().error().message(), HasSubstr("enough"));
}

// Its abort or its free waits for a device that hangs, until it is let go.
class HangingNccl final : public FakeNccl {
 public:
  HangingNccl(testing::NcclLog& log, std::string call) : FakeNccl(log), call_(std::move(call)) {}
  int abort(NcclComm comm) override {
    return hang("abort", [&] { return FakeNccl::abort(comm); });
  }
  int free(void* memory) override {
    return hang("free", [&] { return FakeNccl::free(memory); });
  }
  void let_go() {
    go_ = true;
    while (inside_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::atomic<int> begun{0};

 private:
  template <typename Rest>
  int hang(const std::string& call, Rest rest) {
    if (call != call_) return rest();
    inside_ = true;
    ++begun;
    while (!go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int status = rest();
    inside_ = false;
    return status;
  }
  std::string call_;
  std::atomic<bool> go_{false}, inside_{false};
};

// The message must not wait for the GPU, and the other ranks must have heard before.
TEST_F(Nccl, AbortOnAGpuThatHangsIsLeftBehindWithAllThatItHolds) {
  HangingNccl hanging(log, "abort");
  auto way = host();
  QueuedCommunicator& others = *way;
  NcclSetup setup = setup_of(hanging);
  setup.last_patience = std::chrono::milliseconds(50);
  auto c = make_nccl_communicator(setup, NcclUniqueId{}, std::move(way), SteadyClock::now() + setup.timeout);
  ASSERT_TRUE(c) << c.error().message();
  const Block block = device_block(**c, 8);
  log.stuck = true;
  bool heard_before = false;
  std::thread other([&] {
    while (hanging.begun == 0) std::this_thread::yield();
    heard_before = others.news().has_value();
  });
  {
    Work work = (*c)->all_reduce(block, Reduce::sum);
    Result<void> ok = work.wait_until(SteadyClock::now() + std::chrono::milliseconds(30));
    ASSERT_FALSE(ok);
    EXPECT_THAT(ok.error().message(), HasSubstr("timed out in all_reduce #0 of 8 f32"));
    other.join();
    EXPECT_TRUE(heard_before);
  }
  c->reset();
  EXPECT_EQ(hanging.begun, 1);
  EXPECT_THAT(log.calls, ::testing::Not(::testing::Contains("free")));
  hanging.let_go();
  for (const void* memory : log.device_memory) std::free(const_cast<void*>(memory));
}

TEST_F(Nccl, FreeOnAGpuThatHangsIsLeftBehind) {
  HangingNccl hanging(log, "free");
  NcclSetup setup = setup_of(hanging);
  setup.last_patience = std::chrono::milliseconds(50);
  auto c = make_nccl_communicator(setup, NcclUniqueId{}, host(), SteadyClock::now() + setup.timeout);
  ASSERT_TRUE(c) << c.error().message();
  device_block(**c, 8);
  c->reset();
  EXPECT_EQ(hanging.begun, 1);
  hanging.let_go();
}

TEST_F(Nccl, RebuiltAfterAnAbort) {
  auto c = made();
  c->abort("next round");
  EXPECT_FALSE(c->barrier());
  c.reset();
  c = made();
  EXPECT_TRUE(c->barrier());
}

TEST(NcclEnvironment, NamesThatNcclDoesNotKnowAreRefused) {
  const auto problem = [](const std::string& variable, const std::string& value) {
    const auto good = check_nccl_environment(
        [&](const std::string& name) { return name == variable ? std::optional(value) : std::nullopt; },
        {"lo", "eth0", "ib0"});
    return good ? std::string() : good.error().message();
  };
  for (const char* value : {"", "eth", "=eth0", "^docker", "wlan,ib0", "=ib0:1"}) {
    EXPECT_EQ(problem("NCCL_SOCKET_IFNAME", value), "") << value;
  }
  EXPECT_EQ(problem("NCCL_SOCKET_IFNAME", "=eth"),
            "NCCL_SOCKET_IFNAME==eth: this host has no such network interface; it has lo, eth0, ib0");
  EXPECT_NE(problem("NCCL_SOCKET_IFNAME", "enp3s0"), "");
  for (const char* value : {"Ring", "tree,ring", "^NVLS", "allreduce:tree;broadcast:ring"}) {
    EXPECT_EQ(problem("NCCL_ALGO", value), "") << value;
  }
  EXPECT_EQ(problem("NCCL_ALGO", "Rind"),
            "NCCL_ALGO=Rind: 'Rind' is not known: did you mean 'Ring'?; NCCL has Ring, Tree, CollnetDirect, "
            "CollnetChain, NVLS, NVLSTree, PAT");
  EXPECT_NE(problem("NCCL_PROTO", "LL64"), "");
  EXPECT_FALSE(network_interfaces().empty());
}

}  // namespace
}  // namespace ddprun::comm
