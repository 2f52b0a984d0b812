#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "worker/device/device_api.h"

namespace ddprun::cuda {

// Sentence for a failed CUDA, cuBLAS or cuDNN call: rank (below 0: none yet), library, call, number, the library's text
// and a remedy.
std::string describe_failure(int rank, std::string_view library, std::string_view call, int status,
                             std::string_view text);

// One process's device: opened once, before any other CUDA call, with three streams whose order events keep.
//   compute        kernels
//   copy           host-to-device batches, one ahead of the kernels
//   communication  collectives (see the NCCL communicator)
// Calls after a failure do nothing; status() tells the first one. No wait is without a deadline: events are polled, and
// a device that does not get there in time is an error that names what was waited for. Thread: the main thread.
class DeviceContext {
 public:
  // A host copy under way, see send().
  using Ticket = std::size_t;

  // Errors: invalid_argument when local_rank is not below the device count (both numbers are named); system with
  // describe_failure()'s sentence.
  static Result<std::unique_ptr<DeviceContext>> open(DeviceApi& api, int rank, int local_rank);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  int device() const { return device_; }
  int rank() const { return rank_; }
  StreamHandle compute() const { return compute_; }
  StreamHandle communication() const { return communication_; }
  DeviceApi& api() { return api_; }

  // Of every wait below. A step of the largest models takes seconds: more than that is a device that hangs.
  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  // From now on memory only goes back, and what has not ended soon never does: waits take a few seconds at most.
  void be_brief();

  // Zeroed on the compute stream. Null when there is not enough: status() then says how much was wanted for what, what
  // is held and by whom, and the remedies.
  void* allocate(std::size_t size_bytes, std::string_view purpose);
  // Behind all work so far, which is waited for: CUDA would do so too, but without a deadline. Does nothing on a device
  // that hangs().
  void release(void* memory);
  std::size_t allocated_bytes() const { return allocated_; }  // device memory, the slots of upload() included
  std::size_t pinned_bytes() const { return pinned_; }        // page-locked host memory

  // Returns as soon as `host` has been read: into page-locked memory, to the device on the copy stream, then into place
  // on the compute stream, so that a batch travels while the previous step's kernels still run.
  void upload(void* device_memory, const void* host, std::size_t size_bytes);
  // Behind the kernels so far; waits. `host` is not written after a failure.
  void download(void* host, const void* device_memory, std::size_t size_bytes);
  // Queues the copy of one value to the host behind the kernels so far and returns; receive() waits for that copy
  // alone. Each ticket is received once. 0 after a failure.
  Ticket send(const double* device_value);
  double receive(Ticket ticket);
  void copy_on_compute(void* out, const void* in, std::size_t size_bytes);
  void zero(void* memory, std::size_t size_bytes);
  void synchronize();  // with the compute stream

  // Error if `memory` lies on another device than this context's, naming both and `what`.
  Result<void> check_on_device(const void* memory, std::string_view what);

  // Notes a failed call of one of the libraries. Returns true if `status` is success.
  bool note(std::string_view library, std::string_view call, int status, std::string_view text);
  // Picks up errors of kernel launches since the last call.
  void note_launches(std::string_view what);
  const Result<void>& status() const { return status_; }
  // A wait ran out of time. Then nothing is freed any more: CUDA, cuBLAS and cuDNN wait for the device when they give
  // back memory or a handle, without a deadline. The memory goes with the process.
  // Not known while nobody has waited: see comes_to_rest().
  bool hangs() const { return !status_ && status_.error().code() == Errc::timed_out; }
  // Waits for all streams; after a failure nothing can be waited for. False: the device hangs(), give nothing back.
  bool comes_to_rest();

 private:
  // A piece of a batch on its way: page-locked and device memory, and when the kernels have taken it.
  struct Slot {
    void* pinned = nullptr;
    void* staged = nullptr;
    std::size_t size = 0;
    EventHandle arrived = nullptr;
    EventHandle taken = nullptr;
    bool used = false;
  };
  // A value on its way to the host.
  struct Letter {
    double* pinned = nullptr;
    EventHandle arrived = nullptr;
  };

  DeviceContext(DeviceApi& api, int rank, int device) : api_(api), rank_(rank), device_(device) {}
  Result<void> create_streams();
  bool ok(std::string_view call, int status);
  void* take(std::size_t size_bytes, std::string_view purpose);
  void* take_pinned(std::size_t size_bytes);
  bool grow(Slot& slot, std::size_t size_bytes);
  void upload_piece(char* device_memory, const char* host, std::size_t size_bytes);
  bool wait(EventHandle event, std::string_view what);
  bool wait_for_compute(std::string_view what);

  DeviceApi& api_;
  int rank_;
  int device_;
  StreamHandle compute_ = nullptr;
  StreamHandle copy_ = nullptr;
  StreamHandle communication_ = nullptr;
  std::chrono::milliseconds patience_{300'000};
  EventHandle reached_ = nullptr;  // a place in the compute stream that the host waits for
  std::array<Slot, 8> slots_;
  std::size_t next_slot_ = 0;
  std::byte* download_ = nullptr;  // page-locked
  std::vector<Letter> letters_;
  std::vector<Ticket> free_letters_;
  std::size_t allocated_ = 0, pinned_ = 0;
  struct Allocation {
    std::size_t size;
    std::string purpose;
  };
  std::map<void*, Allocation> allocations_;
  Result<void> status_;
};

}  // namespace ddprun::cuda
