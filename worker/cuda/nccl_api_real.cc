#include "worker/cuda/nccl_api_real.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstring>

#include "common/check.h"

namespace ddprun::cuda {
namespace {

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(NcclApi::kSuccess == ncclSuccess && NcclApi::kUnhandledCudaError == ncclUnhandledCudaError &&
              NcclApi::kSystemError == ncclSystemError && NcclApi::kInternalError == ncclInternalError &&
              NcclApi::kInvalidArgument == ncclInvalidArgument && NcclApi::kInvalidUsage == ncclInvalidUsage &&
              NcclApi::kRemoteError == ncclRemoteError && NcclApi::kInProgress == ncclInProgress);

ncclComm_t comm_of(NcclComm comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t stream_of(NcclStream stream) { return static_cast<cudaStream_t>(stream); }

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
  }
  CHECK(false, "dtype out of range");
  return ncclFloat32;
}

ncclRedOp_t op_of(Reduce op) {
  switch (op) {
    case Reduce::sum:
      return ncclSum;
    case Reduce::avg:
      return ncclAvg;
    case Reduce::min:
      return ncclMin;
    case Reduce::max:
      return ncclMax;
  }
  CHECK(false, "reduction out of range");
  return ncclSum;
}

class RealNccl final : public NcclApi {
 public:
  std::string version() override {
    int v = 0;
    ncclGetVersion(&v);
    return fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
  }

  int get_unique_id(NcclUniqueId* id) override {
    ncclUniqueId made;
    const ncclResult_t status = ncclGetUniqueId(&made);
    std::memcpy(id->data(), &made, sizeof made);
    return status;
  }

  int init_rank(NcclComm* comm, int world_size, const NcclUniqueId& id, int rank) override {
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    const ncclResult_t status = ncclCommInitRankConfig(&made, world_size, unique, rank, &config);
    *comm = made;
    return status;
  }

  int async_error(NcclComm comm, int* state) override {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(comm_of(comm), &result);
    *state = result;
    return status;
  }
  int finalize(NcclComm comm) override { return ncclCommFinalize(comm_of(comm)); }
  int destroy(NcclComm comm) override { return ncclCommDestroy(comm_of(comm)); }
  int abort(NcclComm comm) override { return ncclCommAbort(comm_of(comm)); }
  std::string error_text(int status) override { return ncclGetErrorString(static_cast<ncclResult_t>(status)); }
  std::string last_error(NcclComm comm) override {
    const char* text = ncclGetLastError(comm_of(comm));
    return text != nullptr ? text : "";
  }

  int all_reduce(const void* in, void* out, std::size_t count, DType dtype, Reduce op, NcclComm comm,
                 NcclStream stream) override {
    return ncclAllReduce(in, out, count, type_of(dtype), op_of(op), comm_of(comm), stream_of(stream));
  }
  int broadcast(const void* in, void* out, std::size_t count, DType dtype, int root, NcclComm comm,
                NcclStream stream) override {
    return ncclBroadcast(in, out, count, type_of(dtype), root, comm_of(comm), stream_of(stream));
  }
  int all_gather(const void* in, void* out, std::size_t count, DType dtype, NcclComm comm, NcclStream stream) override {
    return ncclAllGather(in, out, count, type_of(dtype), comm_of(comm), stream_of(stream));
  }
  int reduce_scatter(const void* in, void* out, std::size_t out_count, DType dtype, Reduce op, NcclComm comm,
                     NcclStream stream) override {
    return ncclReduceScatter(in, out, out_count, type_of(dtype), op_of(op), comm_of(comm), stream_of(stream));
  }

  int allocate(void** memory, std::size_t size_bytes) override { return ncclMemAlloc(memory, size_bytes); }
  int free(void* memory) override { return ncclMemFree(memory); }
  int register_memory(NcclComm comm, void* memory, std::size_t size_bytes, void** handle) override {
    return ncclCommRegister(comm_of(comm), memory, size_bytes, handle);
  }
  int deregister(NcclComm comm, void* handle) override { return ncclCommDeregister(comm_of(comm), handle); }
};

}  // namespace

std::unique_ptr<NcclApi> make_nccl_api() { return std::make_unique<RealNccl>(); }

}  // namespace ddprun::cuda
