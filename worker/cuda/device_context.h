#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "worker/cuda/device_api.h"

namespace ddprun::cuda {

// Sentence for a failed CUDA, cuBLAS or cuDNN call: rank, library, call, number, the library's text and a remedy.
std::string describe_failure(int rank, std::string_view library, std::string_view call, int status,
                             std::string_view text);

// One process's device: opened once, before any other CUDA call, with three streams whose order events keep.
//   compute        kernels
//   copy           host-to-device batches, one ahead of the kernels
//   communication  collectives (see the NCCL communicator)
// Calls after a failure do nothing; status() tells the first one. Thread: the main thread.
class DeviceContext {
 public:
  // Errors: invalid_argument when local_rank is not below the device count (both numbers are named); system with
  // describe_failure()'s sentence.
  static Result<std::unique_ptr<DeviceContext>> open(DeviceApi& api, int rank, int local_rank);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  int device() const { return device_; }
  int rank() const { return rank_; }
  StreamHandle compute() const { return compute_; }
  StreamHandle copy() const { return copy_; }
  StreamHandle communication() const { return communication_; }
  DeviceApi& api() { return api_; }

  // Zeroed on the compute stream. Null when there is not enough: status() then says how much was wanted for what, what
  // is held and by whom, and the remedies.
  void* allocate(std::size_t size_bytes, std::string_view purpose);
  void release(void* memory);
  std::size_t allocated_bytes() const { return allocated_; }

  // Returns as soon as `host` has been read: into page-locked memory, to the device on the copy stream, then into place
  // on the compute stream, so that a batch travels while the previous step's kernels still run.
  void upload(void* device_memory, const void* host, std::size_t size_bytes);
  // Waits for the compute stream, then copies.
  void download(void* host, const void* device_memory, std::size_t size_bytes);
  void copy_on_compute(void* out, const void* in, std::size_t size_bytes);
  void zero(void* memory, std::size_t size_bytes);
  void synchronize();

  // Error if `memory` lies on another device than this context's, naming both and `what`.
  Result<void> check_on_device(const void* memory, std::string_view what);

  // Notes a failed call of one of the libraries. Returns true if `status` is success.
  bool note(std::string_view library, std::string_view call, int status, std::string_view text);
  // Picks up errors of kernel launches since the last call.
  void note_launches(std::string_view what);
  const Result<void>& status() const { return status_; }

 private:
  // A batch on its way: page-locked and device memory, and when the kernels have taken it.
  struct Slot {
    void* pinned = nullptr;
    void* staged = nullptr;
    std::size_t size = 0;
    EventHandle arrived = nullptr;
    EventHandle taken = nullptr;
    bool used = false;
  };

  DeviceContext(DeviceApi& api, int rank, int device) : api_(api), rank_(rank), device_(device) {}
  Result<void> create_streams();
  bool ok(std::string_view call, int status);
  bool grow(Slot& slot, std::size_t size_bytes);

  DeviceApi& api_;
  int rank_;
  int device_;
  StreamHandle compute_ = nullptr;
  StreamHandle copy_ = nullptr;
  StreamHandle communication_ = nullptr;
  std::array<Slot, 4> slots_;
  std::size_t next_slot_ = 0;
  std::size_t allocated_ = 0;
  struct Allocation {
    std::size_t size;
    std::string purpose;
  };
  std::map<void*, Allocation> allocations_;
  Result<void> status_;
};

}  // namespace ddprun::cuda
