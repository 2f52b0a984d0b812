#include "worker/device/device_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ddprun::cuda {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Records the order of calls; memory is host memory; fails on command.
class FakeDevice final : public DeviceApi {
 public:
  std::vector<std::string> calls;
  std::map<std::string, int> fail;  // call -> status
  int devices = 2;
  std::size_t capacity = 1 << 20;

  ~FakeDevice() override {
    for (auto& [memory, size] : live) std::free(memory);
    for (void* memory : pinned) std::free(memory);
  }

  int device_count(int* count) override {
    *count = devices;
    return step("device_count");
  }
  int set_device(int device) override {
    const int status = step("set_device " + std::to_string(device));
    return status != 0 ? status : device < devices ? 0 : 101;
  }
  int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) override {
    *free_bytes = capacity - used;
    *total_bytes = capacity;
    return 0;
  }
  int malloc(void** memory, std::size_t size_bytes) override {
    if (used + size_bytes > capacity) return kOutOfMemory;
    used += size_bytes;
    *memory = std::malloc(size_bytes);
    live[*memory] = size_bytes;
    return step("malloc");
  }
  int free(void* memory) override {
    used -= live.at(memory);
    live.erase(memory);
    std::free(memory);
    return step("free");
  }
  int malloc_host(void** memory, std::size_t size_bytes) override {
    *memory = std::malloc(size_bytes);
    pinned.insert(*memory);
    return step("malloc_host");
  }
  int free_host(void* memory) override {
    pinned.erase(memory);
    std::free(memory);
    return step("free_host");
  }
  int memset_async(void* memory, int byte, std::size_t size_bytes, StreamHandle stream) override {
    std::memset(memory, byte, size_bytes);
    return step("memset on " + name(stream));
  }
  int memcpy_async(void* out, const void* in, std::size_t size_bytes, StreamHandle stream) override {
    std::memcpy(out, in, size_bytes);
    return step("memcpy on " + name(stream));
  }
  int create_stream(StreamHandle* stream, bool high_priority) override {
    *stream = reinterpret_cast<void*>(++streams);
    return step(high_priority ? "create_stream high" : "create_stream");
  }
  int destroy_stream(StreamHandle) override { return step("destroy_stream"); }
  int create_event(EventHandle* event) override {
    *event = reinterpret_cast<void*>(++events);
    return 0;
  }
  int destroy_event(EventHandle) override { return 0; }
  int record_event(EventHandle, StreamHandle stream) override {
    recorded_on = stream;
    return step("record on " + name(stream));
  }
  int wait_event(StreamHandle stream, EventHandle) override { return step(name(stream) + " waits"); }
  int query_event(EventHandle) override {
    if (stuck && (stuck_stream == nullptr || stuck_stream == recorded_on)) return kNotReady;
    if (busy > 0) return --busy, kNotReady;
    return step("query_event");
  }
  int pointer_device(const void*, int* device) override {
    *device = owner;
    return step("pointer_device");
  }
  int last_launch_error() override {
    const int status = launch_error;
    launch_error = 0;
    return status;
  }
  std::string error_text(int status) override {
    return status == kOutOfMemory ? "out of memory"
           : status == 101        ? "invalid device ordinal"
                                  : "CUDA driver version is insufficient for CUDA runtime version";
  }
  std::string device_name(int) override { return "fake"; }

  int owner = 0;
  bool stuck = false;                   // events do not happen
  StreamHandle stuck_stream = nullptr;  // only those of this stream
  int busy = 0;                         // queries until the next event has happened
  int launch_error = 0;
  std::map<void*, std::size_t> live;
  std::set<void*> pinned;

 private:
  int step(const std::string& call) {
    calls.push_back(call);
    const auto found = fail.find(call);
    return found == fail.end() ? 0 : found->second;
  }
  static std::string name(StreamHandle stream) {
    switch (reinterpret_cast<std::uintptr_t>(stream)) {
      case 1:
        return "compute";
      case 2:
        return "copy";
      default:
        return "communication";
    }
  }
  std::uintptr_t streams = 0, events = 0;
  StreamHandle recorded_on = nullptr;
  std::size_t used = 0;
};

TEST(DeviceContext, SetsTheLocalRanksDeviceBeforeAnyOtherCall) {
  FakeDevice device;
  auto context = DeviceContext::open(device, 5, 1);
  ASSERT_TRUE(context) << context.error().message();
  ASSERT_FALSE(device.calls.empty());
  EXPECT_EQ(device.calls.front(), "set_device 1");
  EXPECT_EQ((*context)->device(), 1);
}

TEST(DeviceContext, LocalRankWithoutADeviceNamesBothNumbers) {
  FakeDevice device;
  auto context = DeviceContext::open(device, 7, 3);
  ASSERT_FALSE(context);
  EXPECT_EQ(context.error().code(), Errc::invalid_argument);
  EXPECT_THAT(context.error().message(), HasSubstr("LOCAL_RANK 3"));
  EXPECT_THAT(context.error().message(), HasSubstr("only 2 CUDA devices"));
}

TEST(DeviceContext, DriverTooOldComesWithARemedy) {
  FakeDevice device;
  device.fail["set_device 0"] = 35;
  device.devices = 1;
  auto context = DeviceContext::open(device, 0, 0);
  ASSERT_FALSE(context);
  EXPECT_THAT(context.error().message(), HasSubstr("cudaSetDevice"));
  EXPECT_THAT(context.error().message(), HasSubstr("update the driver"));
}

TEST(DeviceContext, UploadTravelsOnTheCopyStreamAndComputeWaitsForIt) {
  FakeDevice device;
  auto context = std::move(DeviceContext::open(device, 0, 0)).value();
  void* target = context->allocate(64, "input");
  ASSERT_NE(target, nullptr);
  std::vector<char> host(64, 'x');
  device.calls.clear();
  context->upload(target, host.data(), host.size());
  EXPECT_THAT(device.calls, ElementsAre("malloc_host", "malloc", "memcpy on copy", "record on copy", "compute waits",
                                        "memcpy on compute", "record on compute"));
  EXPECT_EQ(std::memcmp(target, host.data(), host.size()), 0);
}

TEST(DeviceContext, NinthUploadWaitsUntilItsSlotWasTaken) {
  FakeDevice device;
  auto context = std::move(DeviceContext::open(device, 0, 0)).value();
  void* target = context->allocate(64, "input");
  std::vector<char> host(64, 'y');
  for (int i = 0; i < 8; ++i) context->upload(target, host.data(), host.size());
  device.calls.clear();
  device.busy = 3;
  context->upload(target, host.data(), host.size());
  EXPECT_THAT(device.calls, ElementsAre("query_event", "memcpy on copy", "record on copy", "compute waits",
                                        "memcpy on compute", "record on compute"));
}

TEST(DeviceContext, SlotsOfUploadsAreCountedAndNoLargerThanAPiece) {
  FakeDevice device;
  device.capacity = std::size_t{200} << 20;
  auto context = std::move(DeviceContext::open(device, 0, 0)).value();
  const std::size_t large = (std::size_t{70} << 20) + 5;
  void* target = context->allocate(large, "weights");
  std::vector<char> host(large);
  for (std::size_t i = 0; i < large; i += 4097) host[i] = static_cast<char>(i);
  context->upload(target, host.data(), large);
  ASSERT_TRUE(context->status()) << context->status().error().message();
  EXPECT_EQ(context->allocated_bytes(), 2 * large);
  EXPECT_EQ(context->pinned_bytes(), large);
  EXPECT_EQ(std::memcmp(target, host.data(), large), 0);
  std::vector<char> back(large);
  context->download(back.data(), target, large);
  EXPECT_EQ(back, host);
  // A slot that must grow gives its old memory back first.
  context->upload(target, host.data(), 64);
  for (int i = 0; i < 8; ++i) context->upload(target, host.data(), 128);
  EXPECT_EQ(context->allocated_bytes(), 2 * large + 5 * 128);
}

TEST(DeviceContext, AWaitThatDoesNotEndNamesWhatItWasFor) {
  const auto said = [](auto use) {
    FakeDevice device;
    auto context = std::move(DeviceContext::open(device, 4, 1)).value();
    auto* memory = static_cast<double*>(context->allocate(64, "x"));
    context->set_patience(std::chrono::milliseconds(20));
    device.stuck = true;
    use(*context, memory);
    EXPECT_FALSE(context->status());
    if (context->status()) return std::string();
    EXPECT_EQ(context->status().error().code(), Errc::timed_out);
    return context->status().error().message();
  };
  EXPECT_EQ(
      said([](DeviceContext& c, double*) { c.synchronize(); }),
      "rank 4: device 1 did not get to the end of the kernels within 0.02 s: a kernel, the GPU or its driver hangs; "
      "look at nvidia-smi and at dmesg (Xid)");
  double host = 7;
  EXPECT_THAT(said([&](DeviceContext& c, double* m) { c.download(&host, m, 8); }), HasSubstr("a copy to the host"));
  EXPECT_EQ(host, 7);
  EXPECT_THAT(said([&](DeviceContext& c, double* m) { c.receive(c.send(m)); }), HasSubstr("that was sent to the host"));
  EXPECT_THAT(said([&](DeviceContext& c, double* m) {
                for (int i = 0; i < 9; ++i) c.upload(m, &host, 8);
              }),
              HasSubstr("an earlier batch"));
}

// CUDA waits for the device, without a deadline, when memory goes back.
TEST(DeviceContext, NothingIsFreedOnADeviceThatHangs) {
  FakeDevice device;
  {
    auto context = std::move(DeviceContext::open(device, 4, 1)).value();
    void* memory = context->allocate(64, "x");
    const double host = 7;
    context->upload(memory, &host, sizeof host);
    context->set_patience(std::chrono::milliseconds(20));
    device.stuck = true;
    context->synchronize();
    EXPECT_TRUE(context->hangs());
    context->release(memory);
  }
  EXPECT_THAT(device.calls, Not(Contains("free")));
  EXPECT_THAT(device.calls, Not(Contains("free_host")));
  device.calls.clear();
  device.stuck = false;
  {  // seen only at the end
    auto context = std::move(DeviceContext::open(device, 4, 1)).value();
    context->allocate(64, "x");
    context->set_patience(std::chrono::milliseconds(20));
    device.stuck = true;
  }
  EXPECT_THAT(device.calls, Not(Contains("free")));
  device.calls.clear();
  device.stuck = false;
  {  // seen by the first that gives memory back, in whatever stream it is
    auto context = std::move(DeviceContext::open(device, 4, 1)).value();
    void* memory = context->allocate(64, "x");
    context->set_patience(std::chrono::milliseconds(20));
    device.stuck = true;
    device.stuck_stream = context->communication();
    context->release(memory);
    EXPECT_TRUE(context->hangs());
    EXPECT_THAT(context->status().error().message(), HasSubstr("did not get to the last collectives"));
  }
  EXPECT_THAT(device.calls, Not(Contains("free")));
}

TEST(DeviceContext, AFailureThatIsNoHangFreesAllMemory) {
  FakeDevice device;
  {
    auto context = std::move(DeviceContext::open(device, 0, 0)).value();
    context->allocate(64, "x");
    device.launch_error = 700;
    context->note_launches("layer_norm");
    EXPECT_FALSE(context->hangs());
  }
  EXPECT_TRUE(device.live.empty());
}

TEST(DeviceContext, SentValuesAreReceivedInAnyOrderWithoutWaitingForLaterWork) {
  FakeDevice device;
  auto context = std::move(DeviceContext::open(device, 0, 0)).value();
  auto* value = static_cast<double*>(context->allocate(8, "loss"));
  std::vector<DeviceContext::Ticket> tickets;
  for (int i = 0; i < 100; ++i) {
    *value = i;
    tickets.push_back(context->send(value));
  }
  const std::size_t pinned = context->pinned_bytes();
  for (int i = 99; i >= 0; --i) EXPECT_EQ(context->receive(tickets[static_cast<std::size_t>(i)]), i);
  device.calls.clear();
  EXPECT_EQ(context->receive(context->send(value)), 99);
  EXPECT_THAT(device.calls, ElementsAre("memcpy on compute", "record on compute", "query_event"));
  EXPECT_EQ(context->pinned_bytes(), pinned);
}

TEST(DeviceContext, OutOfMemoryNamesWhatIsHeldAndTheRemedies) {
  FakeDevice device;
  auto context = std::move(DeviceContext::open(device, 2, 0)).value();
  ASSERT_NE(context->allocate(512 << 10, "gradients"), nullptr);
  EXPECT_EQ(context->allocate(768 << 10, "activations"), nullptr);
  ASSERT_FALSE(context->status());
  const std::string& message = context->status().error().message();
  EXPECT_THAT(message, HasSubstr("rank 2: out of memory on device 0"));
  EXPECT_THAT(message, HasSubstr("wanted for activations"));
  EXPECT_THAT(message, HasSubstr("gradients"));
  EXPECT_THAT(message, HasSubstr("data.batch_size"));
  EXPECT_THAT(message, HasSubstr("activation_checkpointing"));
}

TEST(DeviceContext, FirstFailureStaysAndLaterCallsDoNothing) {
  FakeDevice device;
  auto context = std::move(DeviceContext::open(device, 0, 0)).value();
  void* target = context->allocate(64, "input");
  device.launch_error = 700;
  context->note_launches("layer_norm");
  ASSERT_FALSE(context->status());
  EXPECT_THAT(context->status().error().message(), HasSubstr("layer_norm"));
  device.calls.clear();
  std::vector<char> host(64);
  context->upload(target, host.data(), host.size());
  context->zero(target, 64);
  EXPECT_TRUE(device.calls.empty());
}

TEST(DeviceContext, BufferOnAnotherDeviceNamesBoth) {
  FakeDevice device;
  auto context = std::move(DeviceContext::open(device, 0, 1)).value();
  device.owner = 0;
  auto checked = context->check_on_device(&device, "gradient bucket 0");
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message(), HasSubstr("gradient bucket 0 lies on device 0 but the plan runs on device 1"));
  device.owner = -1;
  EXPECT_THAT(context->check_on_device(&device, "x").error().message(), HasSubstr("in host memory"));
  device.owner = 1;
  EXPECT_TRUE(context->check_on_device(&device, "x"));
}

TEST(DeviceContext, FreesAllMemoryAtItsEnd) {
  FakeDevice device;
  {
    auto context = std::move(DeviceContext::open(device, 0, 0)).value();
    void* kept = context->allocate(64, "a");
    context->release(context->allocate(64, "b"));
    std::vector<char> host(16);
    context->upload(kept, host.data(), host.size());
  }
  EXPECT_TRUE(device.live.empty());
}

}  // namespace
}  // namespace ddprun::cuda
