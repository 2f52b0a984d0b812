#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/flight_recorder.h"
#include "worker/comm/communicator.h"
#include "worker/comm/key_value.h"
#include "worker/comm/queued_communicator.h"
#include "worker/device/device_api.h"
#include "worker/device/nccl_api.h"

namespace ddprun::comm {

using cuda::NcclApi;
using cuda::NcclComm;
using cuda::NcclStream;
using cuda::NcclUniqueId;

struct NcclSetup {
  NcclApi* nccl = nullptr;
  cuda::DeviceApi* device = nullptr;
  cuda::StreamHandle compute = nullptr;        // produced and will consume the data
  cuda::StreamHandle communication = nullptr;  // NCCL runs here
  int device_number = 0;                       // of the process: set in each thread that calls NCCL
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{30'000};
  std::chrono::milliseconds last_patience{10'000};  // for each call that gives something back, see below
  std::shared_ptr<FlightWriter> recorder;           // may be null
};

// The root of a communicator is rank 0: it makes the id and sets `key`; then the ranks meet on `host`, and the others
// read it. So a root that dies, is silent or cannot make an id is known to everybody who waits, by `host`'s words. The
// id lives as long as the root's process. Errors: timed_out or peer_closed naming the root; NCCL's as nccl_error().
Result<NcclUniqueId> exchange_unique_id(NcclApi& nccl, KeyValue& store, const std::string& key, Communicator& host,
                                        TimePoint deadline);

// Rank, call, NCCL's status and last-error text, and what to do about it.
Error nccl_error(NcclApi& nccl, NcclComm comm, int rank, const std::string& call, int status);

// Collectives on device memory by NCCL. Host memory and barriers go through `host`, which also tells of dead peers
// while NCCL would wait, and who is missing (or in another collective) when NCCL has not ended by the deadline.
// Initialisation, every call and every wait are polled against a deadline; on expiry NCCL's communicator is aborted.
// What fails on one rank aborts `host` too: NCCL would leave the others waiting. NCCL's abort and its frees have no
// deadline of their own on a GPU that hangs: one that does not return is left behind, with a warning, and all that is
// left then goes with the process. `nccl` and `device` must live as long.
Result<std::unique_ptr<Communicator>> make_nccl_communicator(const NcclSetup& setup, const NcclUniqueId& id,
                                                             std::unique_ptr<QueuedCommunicator> host,
                                                             TimePoint deadline);

}  // namespace ddprun::comm
