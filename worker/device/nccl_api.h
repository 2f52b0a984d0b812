#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "worker/tensor/dtype.h"
#include "worker/tensor/reduce.h"

// Thin seam over NCCL: exactly the calls that our logic makes, with NCCL's own status numbers. The real one lives in
// libddprun_cuda.so (worker/cuda/nccl_api_real.cc); a fake replays call order and errors in tests.
namespace ddprun::cuda {

using NcclUniqueId = std::array<char, 128>;
using NcclComm = void*;
using NcclStream = void*;  // cudaStream_t

class NcclApi {
 public:
  // ncclResult_t of NCCL 2.28
  static constexpr int kSuccess = 0;
  static constexpr int kUnhandledCudaError = 1;
  static constexpr int kSystemError = 2;
  static constexpr int kInternalError = 3;
  static constexpr int kInvalidArgument = 4;
  static constexpr int kInvalidUsage = 5;
  static constexpr int kRemoteError = 6;
  static constexpr int kInProgress = 7;

  virtual ~NcclApi() = default;

  virtual std::string version() = 0;  // "2.28.9"
  // Opens a listening socket in this process, which must live until all ranks have joined.
  virtual int get_unique_id(NcclUniqueId* id) = 0;
  // Non-blocking (config.blocking = 0): kSuccess or kInProgress, then poll async_error().
  virtual int init_rank(NcclComm* comm, int world_size, const NcclUniqueId& id, int rank) = 0;
  virtual int async_error(NcclComm comm, int* state) = 0;
  virtual int finalize(NcclComm comm) = 0;  // non-blocking too
  virtual int destroy(NcclComm comm) = 0;
  virtual int abort(NcclComm comm) = 0;  // any time; frees it
  virtual std::string error_text(int status) = 0;
  virtual std::string last_error(NcclComm comm) = 0;  // may be null

  virtual int all_reduce(const void* in, void* out, std::size_t count, DType dtype, Reduce op, NcclComm comm,
                         NcclStream stream) = 0;
  virtual int broadcast(const void* in, void* out, std::size_t count, DType dtype, int root, NcclComm comm,
                        NcclStream stream) = 0;
  virtual int all_gather(const void* in, void* out, std::size_t count, DType dtype, NcclComm comm,
                         NcclStream stream) = 0;
  virtual int reduce_scatter(const void* in, void* out, std::size_t out_count, DType dtype, Reduce op, NcclComm comm,
                             NcclStream stream) = 0;

  // Memory that NCCL may use without copying (ncclMemAlloc), and telling it so (ncclCommRegister).
  virtual int allocate(void** memory, std::size_t size_bytes) = 0;
  virtual int free(void* memory) = 0;
  virtual int register_memory(NcclComm comm, void* memory, std::size_t size_bytes, void** handle) = 0;
  virtual int deregister(NcclComm comm, void* handle) = 0;
};

}  // namespace ddprun::cuda
