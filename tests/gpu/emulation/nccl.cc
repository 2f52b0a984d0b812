// The NCCL calls of worker/cuda/nccl_api_real.cc. Ranks are processes of one host that share a memfd of rank 0, which
// the unique id names; a collective runs on its stream, in rank order, in the type of its elements as NCCL does.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <nccl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "tests/gpu/emulation/device.h"

namespace em = ddprun::emulated;

namespace {

constexpr int kMaxRanks = 8;
constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes of each rank in one turn
constexpr auto kPatience = std::chrono::seconds(60);

struct Shared {
  std::atomic<std::uint64_t> arrived[kMaxRanks];
  char data[kMaxRanks][kPiece];
};

struct Comm {
  Shared* shared = nullptr;
  int ranks = 1, rank = 0;
  std::uint64_t barriers = 0;
  int polls = 2;  // ncclInProgress that often after the initialisation
  bool finalized = false;

  ~Comm() {
    if (shared != nullptr) ::munmap(shared, sizeof(Shared));
  }
  void barrier() {
    shared->arrived[rank].store(++barriers, std::memory_order_release);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (int r = 0; r < ranks; ++r) {
      while (shared->arrived[r].load(std::memory_order_acquire) < barriers) {
        if (std::chrono::steady_clock::now() > deadline) {
          std::fprintf(stderr, "emulated NCCL: rank %d waits for rank %d\n", rank, r);
          std::abort();
        }
        ::sched_yield();
      }
    }
  }
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

template <typename T>
void combine(const Comm& comm, std::size_t count, ncclRedOp_t op, void* out) {
  for (std::size_t i = 0; i < count; ++i) {
    T value{};
    for (int r = 0; r < comm.ranks; ++r) {
      T x;
      std::memcpy(&x, comm.shared->data[r] + i * sizeof(T), sizeof(T));
      if (op == ncclAvg) x = static_cast<T>(x / static_cast<T>(comm.ranks));  // before the sum, as NCCL
      value = r == 0 ? x : op == ncclMin ? std::min(value, x) : op == ncclMax ? std::max(value, x) : value + x;
    }
    std::memcpy(static_cast<char*>(out) + i * sizeof(T), &value, sizeof(T));
  }
}
void combine_16(const Comm& comm, em::Type type, std::size_t count, ncclRedOp_t op, void* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    double value = 0;
    for (int r = 0; r < comm.ranks; ++r) {
      char x[2];
      em::store(type, x, 0, em::load(type, comm.shared->data[r], at) / (op == ncclAvg ? comm.ranks : 1));
      char sum[2];
      em::store(type, sum, 0, value + em::load(type, x, 0));
      value = em::load(type, sum, 0);
    }
    em::store(type, out, at, value);
  }
}
void reduce(const Comm& comm, std::size_t count, ncclDataType_t type, ncclRedOp_t op, void* out) {
  switch (type) {
    case ncclFloat32:
      return combine<float>(comm, count, op, out);
    case ncclFloat64:
      return combine<double>(comm, count, op, out);
    case ncclInt32:
      return combine<std::int32_t>(comm, count, op, out);
    case ncclInt64:
      return combine<std::int64_t>(comm, count, op, out);
    case ncclFloat16:
      return combine_16(comm, em::Type::f16, count, op, out);
    case ncclBfloat16:
      return combine_16(comm, em::Type::bf16, count, op, out);
    default:
      em::violated("an element type that the emulation of NCCL has not");
  }
}

// Piece by piece: everybody shows `count` elements of `in` at once, `take` writes what this rank gets of them.
void exchange(Comm& comm, const void* in, std::size_t count, std::size_t element,
              const std::function<void(std::size_t first, std::size_t n)>& take) {
  const std::size_t piece = kPiece / element;
  for (std::size_t first = 0; first < count; first += piece) {
    const std::size_t n = std::min(piece, count - first);
    std::memcpy(comm.shared->data[comm.rank], static_cast<const char*>(in) + first * element, n * element);
    comm.barrier();
    take(first, n);
    comm.barrier();
  }
}

struct Reach {
  const void* memory;
  std::size_t count;
};
ncclResult_t begin(const char* name, Reach in, Reach out, ncclDataType_t type, cudaStream_t stream) {
  if (const ncclResult_t status = call(name, stream)) return status;
  const bool good = em::reaches(in.memory, in.count * bytes_of(type), name) &&
                    em::reaches(out.memory, out.count * bytes_of(type), name);
  return good ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  // Left open: it must be there until all have come, as NCCL's listening socket.
  const int fd = ::memfd_create("emulated-nccl", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0) return ncclSystemError;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", static_cast<int>(::getpid()), fd);
  return call("ncclGetUniqueId");
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (const ncclResult_t status = call("ncclCommInitRankConfig", nullptr, true)) return status;
  if (config->blocking != 0) em::violated("a communicator of NCCL that blocks");
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) return ncclInvalidUsage;
  const int fd = ::open(id.internal, O_RDWR | O_CLOEXEC);
  if (fd < 0) return ncclSystemError;
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) return ncclSystemError;
  auto* comm = new Comm;
  comm->shared = static_cast<Shared*>(memory);
  comm->ranks = ranks;
  comm->rank = rank;
  *out = reinterpret_cast<ncclComm_t>(comm);
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

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t handle, cudaStream_t stream) {
  if (const ncclResult_t status = begin("ncclAllReduce", {in, count}, {out, count}, type, stream)) return status;
  em::enqueue(stream, [=, comm = reinterpret_cast<Comm*>(handle)] {
    exchange(*comm, in, count, bytes_of(type), [&](std::size_t first, std::size_t n) {
      reduce(*comm, n, type, op, static_cast<char*>(out) + first * bytes_of(type));
    });
  });
  return ncclSuccess;
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t handle,
                           cudaStream_t stream) {
  if (const ncclResult_t status = begin("ncclBroadcast", {in, count}, {out, count}, type, stream)) return status;
  em::enqueue(stream, [=, comm = reinterpret_cast<Comm*>(handle)] {
    exchange(*comm, in, count, bytes_of(type), [&](std::size_t first, std::size_t n) {
      std::memcpy(static_cast<char*>(out) + first * bytes_of(type), comm->shared->data[root], n * bytes_of(type));
    });
  });
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t handle,
                           cudaStream_t stream) {
  const auto* c = reinterpret_cast<Comm*>(handle);
  const std::size_t all = count * static_cast<std::size_t>(c->ranks);
  if (const ncclResult_t status = begin("ncclAllGather", {in, count}, {out, all}, type, stream)) return status;
  em::enqueue(stream, [=, comm = reinterpret_cast<Comm*>(handle)] {
    exchange(*comm, in, count, bytes_of(type), [&](std::size_t first, std::size_t n) {
      for (int r = 0; r < comm->ranks; ++r) {
        std::memcpy(static_cast<char*>(out) + (static_cast<std::size_t>(r) * count + first) * bytes_of(type),
                    comm->shared->data[r], n * bytes_of(type));
      }
    });
  });
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t handle, cudaStream_t stream) {
  const auto* c = reinterpret_cast<Comm*>(handle);
  const std::size_t all = count * static_cast<std::size_t>(c->ranks);
  if (const ncclResult_t status = begin("ncclReduceScatter", {in, all}, {out, count}, type, stream)) return status;
  em::enqueue(stream, [=, comm = reinterpret_cast<Comm*>(handle)] {
    for (int r = 0; r < comm->ranks; ++r) {
      const auto* part = static_cast<const char*>(in) + static_cast<std::size_t>(r) * count * bytes_of(type);
      exchange(*comm, part, count, bytes_of(type), [&](std::size_t first, std::size_t n) {
        if (r == comm->rank) reduce(*comm, n, type, op, static_cast<char*>(out) + first * bytes_of(type));
      });
    }
  });
  return ncclSuccess;
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
