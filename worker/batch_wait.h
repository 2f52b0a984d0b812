#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "common/clock.h"
#include "common/result.h"
#include "worker/comm/communicator.h"
#include "worker/data/loader.h"

namespace ddprun::trainer {

// Says on this rank's stderr that a read is slow: after a while, then each time that the wait has doubled.
class SlowRead {
 public:
  SlowRead(int rank, std::chrono::milliseconds first) : rank_(rank), first_(first), due_(first) {}
  void waits(const data::Loader& loader);  // call it from time to time while the loader has nothing
  void over();

 private:
  int rank_;
  std::chrono::milliseconds first_, due_;
  bool waiting_ = false;
  bool said_ = false;
  TimePoint since_{};
};

enum class BatchOutcome : std::uint8_t {
  ready,   // Loader::next() gives this rank's batch at once; if all ranks met, every rank's
  stop,    // a stop signal came while some rank waited: no step is made, on any rank
  failed,  // some rank's read timed out; all ranks know. `mine` is that rank's error
};
struct BatchWaitResult {
  BatchOutcome outcome = BatchOutcome::ready;
  Result<void> mine;
};

// How long a rank waits for its data by itself before the ranks tell each other.
std::chrono::milliseconds wait_slice(std::chrono::milliseconds collective_timeout);

// Waits until the loader has this rank's next batch. A slow read may take much longer than a collective may
// (data.read_timeout_s, ddp.timeout_s), so ranks must not wait for it in the gradients' all-reduce: they would end
// with "rank 1 is missing", and its reason would never be heard. Therefore a rank without its batch takes part in a
// small vote every slice, and at `meet` a rank with its batch does the same until all have theirs.
//   meet: the same on every rank; each step that exchanges gradients needs one, unless all ranks knew before that every
//     rank's batch was there.
// Errors: the communicator's.
Result<BatchWaitResult> wait_for_batch(comm::Communicator& communicator, data::Loader& loader, bool meet,
                                       std::chrono::milliseconds slice, SlowRead& slow,
                                       const std::function<bool()>& stop_requested);

}  // namespace ddprun::trainer
