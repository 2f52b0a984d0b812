#include "worker/comm/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "worker/comm/self_transport.h"

// Our side of NCCL against a fake that records the order of calls and fails on command. The fake's "device" memory is
// host memory that it knows; a collective of one rank changes nothing.
namespace ddprun::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Log {
  std::vector<std::string> calls;
  std::map<std::string, int> fail;         // call -> status
  std::map<std::string, int> in_progress;  // call -> polls of async_error until it is done
  int async = 0;                           // what async_error tells once nothing is in progress
  bool stuck = false;                      // events do not happen
  std::set<const void*> device_memory;

  int step(const std::string& call) {
    calls.push_back(call);
    const auto f = fail.find(call.substr(0, call.find(' ')));
    return f == fail.end() ? 0 : f->second;
  }
};

class FakeDevice final : public cuda::DeviceApi {
 public:
  explicit FakeDevice(Log& log) : log_(log) {}
  int device_count(int* count) override { return *count = 1, 0; }
  int set_device(int) override { return 0; }
  int memory_info(std::size_t* a, std::size_t* b) override { return *a = *b = 1 << 20, 0; }
  int malloc(void**, std::size_t) override { return 2; }
  int free(void*) override { return 0; }
  int malloc_host(void**, std::size_t) override { return 2; }
  int free_host(void*) override { return 0; }
  int memset_async(void* memory, int byte, std::size_t size, cuda::StreamHandle) override {
    std::memset(memory, byte, size);
    return log_.step("memset");
  }
  int memcpy_async(void*, const void*, std::size_t, cuda::StreamHandle) override { return 0; }
  int create_stream(cuda::StreamHandle*, bool) override { return 0; }
  int destroy_stream(cuda::StreamHandle) override { return 0; }
  int create_event(cuda::EventHandle* event) override {
    ++live_events;
    *event = reinterpret_cast<void*>(++next_);
    return log_.fail.count("create_event") != 0 ? 2 : 0;
  }
  int destroy_event(cuda::EventHandle) override { return --live_events, 0; }
  int record_event(cuda::EventHandle, cuda::StreamHandle stream) override {
    return log_.step(stream == kCompute ? "record compute" : "record communication");
  }
  int wait_event(cuda::StreamHandle stream, cuda::EventHandle) override {
    return log_.step(stream == kCompute ? "wait compute" : "wait communication");
  }
  int query_event(cuda::EventHandle) override { return log_.stuck ? kNotReady : 0; }
  int pointer_device(const void* memory, int* device) override {
    *device = log_.device_memory.count(memory) != 0 ? 0 : -1;
    if (log_.fail.count("pointer_device") == 0) return 0;
    return *device = -1, log_.fail["pointer_device"];
  }
  int last_launch_error() override { return 0; }
  std::string error_text(int) override { return "cuda text"; }
  std::string device_name(int) override { return "fake"; }

  static inline const cuda::StreamHandle kCompute = reinterpret_cast<void*>(0x10);
  static inline const cuda::StreamHandle kCommunication = reinterpret_cast<void*>(0x20);
  int live_events = 0;

 private:
  Log& log_;
  std::uintptr_t next_ = 0;
};

class FakeNccl final : public NcclApi {
 public:
  explicit FakeNccl(Log& log) : log_(log) {}
  std::string version() override { return "9.9.9"; }
  int get_unique_id(NcclUniqueId* id) override {
    id->fill('u');
    return log_.step("get_unique_id");
  }
  int init_rank(NcclComm* comm, int world_size, const NcclUniqueId&, int rank) override {
    *comm = reinterpret_cast<void*>(0x99);
    return begin("init_rank", " " + std::to_string(rank) + "/" + std::to_string(world_size));
  }
  int async_error(NcclComm comm, int* state) override {
    EXPECT_NE(comm, nullptr);
    if (pending_ > 0 && pending_ < 1'000'000) --pending_;
    *state = pending_ > 0 ? kInProgress : pending_status_ != 0 ? std::exchange(pending_status_, 0) : log_.async;
    return 0;
  }
  int finalize(NcclComm) override { return begin("finalize", ""); }
  int destroy(NcclComm) override { return log_.step("destroy"); }
  int abort(NcclComm) override { return log_.step("abort"); }
  std::string error_text(int status) override { return "nccl text " + std::to_string(status); }
  std::string last_error(NcclComm) override { return last; }
  int all_reduce(const void* in, void* out, std::size_t count, DType dtype, Reduce op, NcclComm, NcclStream) override {
    EXPECT_EQ(in, out);
    return begin("all_reduce", " " + std::to_string(count) + " " + name_of(dtype) + " " + name_of(op));
  }
  int broadcast(const void*, void*, std::size_t count, DType, int root, NcclComm, NcclStream) override {
    return begin("broadcast", " " + std::to_string(count) + " from " + std::to_string(root));
  }
  int all_gather(const void*, void*, std::size_t count, DType, NcclComm, NcclStream) override {
    return begin("all_gather", " " + std::to_string(count));
  }
  int reduce_scatter(const void*, void*, std::size_t count, DType, Reduce, NcclComm, NcclStream) override {
    return begin("reduce_scatter", " " + std::to_string(count));
  }
  int allocate(void** memory, std::size_t size) override {
    *memory = std::malloc(size);
    log_.device_memory.insert(*memory);
    return log_.step("allocate");
  }
  int free(void* memory) override {
    log_.device_memory.erase(memory);
    std::free(memory);
    return log_.step("free");
  }
  int register_memory(NcclComm, void*, std::size_t, void** handle) override {
    *handle = reinterpret_cast<void*>(0x77);
    return begin("register", "");
  }
  int deregister(NcclComm, void*) override { return log_.step("deregister"); }

  std::string last;

 private:
  // A call that ends now, or is in progress for some polls and then ends with its status.
  int begin(const std::string& name, const std::string& rest) {
    const int status = log_.step(name + rest);
    const auto p = log_.in_progress.find(name);
    if (p == log_.in_progress.end()) return status;
    pending_ = p->second;
    pending_status_ = status;
    return kInProgress;
  }

  Log& log_;
  int pending_ = 0;
  int pending_status_ = 0;
};

class Nccl : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Communicator>> make(std::chrono::milliseconds patience = std::chrono::seconds(20)) {
    NcclSetup setup;
    setup.nccl = &nccl;
    setup.device = &device;
    setup.compute = FakeDevice::kCompute;
    setup.communication = FakeDevice::kCommunication;
    setup.timeout = patience;
    return make_nccl_communicator(
        setup, NcclUniqueId{},
        std::make_unique<QueuedCommunicator>(make_self_transport(), QueuedCommunicator::Options{}),
        SteadyClock::now() + patience);
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

  Log log;
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
    log = Log();
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

TEST_F(Nccl, RebuiltAfterAnAbort) {
  auto c = made();
  c->abort("next round");
  EXPECT_FALSE(c->barrier());
  c.reset();
  c = made();
  EXPECT_TRUE(c->barrier());
}

TEST_F(Nccl, UniqueIdGoesThroughTheStore) {
  class Store final : public KeyValue {
   public:
    Result<void> set(std::string_view key, std::string_view value) override {
      values[std::string(key)] = value;
      return {};
    }
    Result<std::string> get(std::string_view key, TimePoint) override {
      const auto at = values.find(key);
      if (at == values.end()) return Error(Errc::timed_out, "timed out");
      return at->second;
    }
    Result<void> erase(std::string_view) override { return {}; }
    std::map<std::string, std::string, std::less<>> values;
  } store;
  auto missing = exchange_unique_id(nccl, store, "/ddprun/nccl/0", 1, SteadyClock::now());
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message(), HasSubstr("rank 1 waits for NCCL's unique id from rank 0"));
  auto root = exchange_unique_id(nccl, store, "/ddprun/nccl/0", 0, SteadyClock::now());
  auto other = exchange_unique_id(nccl, store, "/ddprun/nccl/0", 1, SteadyClock::now());
  ASSERT_TRUE(root && other);
  EXPECT_EQ(*root, *other);
  store.values["/ddprun/nccl/0"] = "short";
  EXPECT_EQ(exchange_unique_id(nccl, store, "/ddprun/nccl/0", 1, SteadyClock::now()).error().code(), Errc::malformed);
  log.fail["get_unique_id"] = NcclApi::kInvalidUsage;
  EXPECT_THAT(exchange_unique_id(nccl, store, "k", 0, SteadyClock::now()).error().message(),
              HasSubstr("ncclGetUniqueId"));
}

}  // namespace
}  // namespace ddprun::comm
