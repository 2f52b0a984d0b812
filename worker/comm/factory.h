#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/worker_env.h"
#include "worker/comm/communicator.h"
#include "worker/comm/key_value.h"

namespace ddprun::cuda {
class DeviceBackend;
}

namespace ddprun::comm {

enum class Backend : std::uint8_t {
  automatic,  // nccl where this process has a GPU and libddprun_cuda.so loads, else cpu
  nccl,
  cpu,
};
enum class Progress : std::uint8_t {
  automatic,    // a thread where this process may use more CPUs than its compute threads need
  thread,       // collectives run in a thread of their own while the caller computes
  when_waited,  // wait() runs them
};

struct CommOptions {
  Backend backend = Backend::automatic;
  std::chrono::milliseconds timeout{30'000};          // of each collective
  std::chrono::milliseconds connect_timeout{30'000};  // until all ranks have found each other
  Progress progress = Progress::automatic;
  int tcp_connections = 2;  // to each neighbour on another host
  std::string address;      // our address for ranks on other hosts; "": the one on the way to MASTER_ADDR
  // Tells several communicators of one attempt apart; the same on every rank. "" for the first.
  std::string name;
};

// "auto", "nccl" or "cpu". Errors: invalid_argument naming the three.
Result<Backend> parse_backend(std::string_view text);

// The loaded CUDA backend if this process is to use a GPU: nullptr under `cpu`, and under `automatic` where there is no
// driver, library or device. Touches no device. Errors: under `nccl`, what is missing.
Result<cuda::DeviceBackend*> find_gpu(Backend backend);

// Connects to all ranks of `env` through the store at env.slice.master: shared memory inside one host (same
// group_rank), shared memory and TCP over several, or nothing for a world of one. Where ranks have GPUs, one NCCL
// communicator over all of them on all hosts is put on top; what lies in host memory goes the CPU's way. Collective:
// all ranks must call it. After abort() and destruction it may be called again in the same process, with the next
// round's `env`. Errors: timed_out naming the ranks that did not come; invalid_argument, also when some ranks have a
// GPU and others none; refused, system.
Result<std::unique_ptr<Communicator>> make_communicator(const WorkerEnv& env, const CommOptions& options);

// The same with what that finds by itself: a store (nullptr for a world of one) and the GPU's backend (nullptr: none).
Result<std::unique_ptr<Communicator>> make_communicator(const WorkerEnv& env, const CommOptions& options,
                                                        KeyValue* store, cuda::DeviceBackend* gpu);

}  // namespace ddprun::comm
