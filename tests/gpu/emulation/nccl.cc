// The NCCL calls of worker/cuda/nccl_api_real.cc for one rank: a collective copies on its stream, or does nothing.
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstring>

#include "tests/gpu/emulation/device.h"

namespace em = ddprun::emulated;

namespace {

struct Comm {
  int polls = 2;  // ncclInProgress that often after the initialisation
  bool finalized = false;
};

ncclResult_t call(const char* name, void* stream = nullptr, bool creates = false) {
  return static_cast<ncclResult_t>(em::called(name, stream, creates));
}
std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
      return 8;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 4;
  }
}
ncclResult_t collective(const char* name, const void* in, void* out, std::size_t count, ncclDataType_t type,
                        cudaStream_t stream) {
  if (const ncclResult_t status = call(name, stream)) return status;
  const std::size_t size = count * bytes_of(type);
  if (!em::reaches(in, size, name) || !em::reaches(out, size, name)) return ncclInvalidArgument;
  em::enqueue(stream, [=] { std::memmove(out, in, size); });
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 1, sizeof *id);
  return call("ncclGetUniqueId");
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int rank, ncclConfig_t* config) {
  if (const ncclResult_t status = call("ncclCommInitRankConfig", nullptr, true)) return status;
  if (config->blocking != 0) em::violated("a communicator of NCCL that blocks");
  if (ranks != 1 || rank != 0) return ncclInvalidUsage;
  *comm = reinterpret_cast<ncclComm_t>(new Comm);
  em::count("nccl communicator", 1);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  auto* c = reinterpret_cast<Comm*>(comm);
  *state = c->polls > 0 && c->polls-- > 0 ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  reinterpret_cast<Comm*>(comm)->finalized = true;
  return call("ncclCommFinalize");
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!reinterpret_cast<Comm*>(comm)->finalized) em::violated("ncclCommDestroy before ncclCommFinalize");
  delete reinterpret_cast<Comm*>(comm);
  em::count("nccl communicator", -1);
  return call("ncclCommDestroy");
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  delete reinterpret_cast<Comm*>(comm);
  em::count("nccl communicator", -1);
  return call("ncclCommAbort");
}
const char* ncclGetErrorString(ncclResult_t) { return "emulated error of NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t,
                           cudaStream_t stream) {
  return collective("ncclAllReduce", in, out, count, type, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int, ncclComm_t,
                           cudaStream_t stream) {
  return collective("ncclBroadcast", in, out, count, type, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t,
                           cudaStream_t stream) {
  return collective("ncclAllGather", in, out, count, type, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t,
                               cudaStream_t stream) {
  return collective("ncclReduceScatter", in, out, count, type, stream);
}
ncclResult_t ncclMemAlloc(void** memory, size_t size) {
  if (const ncclResult_t status = call("ncclMemAlloc", nullptr, true)) return status;
  *memory = em::allocate_device(size);
  return *memory != nullptr ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* memory) {
  if (const ncclResult_t status = call("ncclMemFree", nullptr, true)) return status;
  return em::release_device(memory) ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void* memory, size_t size, void** handle) {
  if (!em::reaches(memory, size, "ncclCommRegister")) return ncclInvalidArgument;
  *handle = memory;
  em::count("nccl registration", 1);
  return call("ncclCommRegister", nullptr, true);
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
  em::count("nccl registration", -1);
  return call("ncclCommDeregister");
}

}  // extern "C"
