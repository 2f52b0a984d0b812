#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "worker/device/device_api.h"
#include "worker/device/nccl_api.h"

// NCCL and a device that record the order of calls and fail on command. The fake's "device" memory is host memory that
// it knows; its collectives change nothing.
namespace ddprun::testing {

using cuda::NcclApi;
using cuda::NcclComm;
using cuda::NcclStream;
using cuda::NcclUniqueId;
using ddprun::DType;
using ddprun::Reduce;

// What was called, and what is to go wrong.
struct NcclLog {
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
  explicit FakeDevice(NcclLog& log) : log_(log) {}
  int device_count(int* count) override { return *count = devices, 0; }
  int set_device(int device) override { return device < devices ? 0 : 101; }
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
  int create_stream(cuda::StreamHandle* stream, bool high_priority) override {
    *stream = high_priority ? kCommunication : kCompute;
    return 0;
  }
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
  int devices = 8;

 private:
  NcclLog& log_;
  std::uintptr_t next_ = 0;
};

class FakeNccl : public NcclApi {
 public:
  explicit FakeNccl(NcclLog& log) : log_(log) {}
  std::string version() override { return "9.9.9"; }
  int get_unique_id(NcclUniqueId* id) override {
    id->fill(mark);
    return log_.step("get_unique_id");
  }
  int init_rank(NcclComm* comm, int world_size, const NcclUniqueId& id, int rank) override {
    joined = id;
    *comm = reinterpret_cast<void*>(0x99);
    return begin("init_rank", " " + std::to_string(rank) + "/" + std::to_string(world_size));
  }
  int async_error(NcclComm comm, int* state) override {
    CHECK(comm != nullptr, "asked about no communicator");
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
    CHECK(in == out, "all_reduce is in place");
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
  char mark = 'u';        // what ids made here consist of
  NcclUniqueId joined{};  // the id of the last initialisation

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

  NcclLog& log_;
  int pending_ = 0;
  int pending_status_ = 0;
};

}  // namespace ddprun::testing
