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
  failed,  // some rank cannot go on; all ranks know. `mine` is that rank's error
};
struct BatchWaitResult {
  BatchOutcome outcome = BatchOutcome::ready;
  Result<void> mine;
};

enum class Meet : std::uint8_t {
  not_needed,  // all ranks knew before that every rank's batch is there
  later,       // this step has more micro-batches: not all ranks are at the same one
  now,         // the gradients are exchanged after this batch
};

// How long a rank waits for its data by itself before it looks up.
std::chrono::milliseconds wait_slice(std::chrono::milliseconds collective_timeout);

// Waits until the loader has this rank's next batch. A slow read may take much longer than a collective may
// (data.read_timeout_s, ddp.timeout_s), so ranks must not wait for it in the gradients' all-reduce: they would end
// with "rank 1 is missing", and its reason would never be heard. Therefore the ranks take small votes: before gradients
// are exchanged until all have their batches, and within a step from time to time, so that those that came first to its
// last micro-batch hear of the others long before a collective's timeout.
class BatchWait {
 public:
  // collective_timeout: the communicator's; a micro-batch must take well below it. All arguments are kept.
  BatchWait(comm::Communicator& communicator, data::Loader& loader, std::chrono::milliseconds collective_timeout,
            SlowRead& slow, std::function<bool()> stop_requested);

  void begin_step();
  // Meet::not_needed and Meet::now: the same on every rank; the rank that is at Meet::now is heard by those that are
  // at Meet::later. Errors: the communicator's.
  Result<BatchWaitResult> wait(Meet meet);
  // Instead of a wait(): this rank cannot go on, between two micro-batches of a step. The others' wait() ends with
  // BatchOutcome::failed. Errors: the communicator's.
  Result<void> give_up();

 private:
  struct Vote {
    bool waiting = false;  // not at Meet::now with its batch
    bool no_data = false, failed = false, stop = false;
  };
  Result<Vote> vote(const Vote& mine);  // of any rank

  comm::Communicator& communicator_;
  data::Loader& loader_;
  std::chrono::milliseconds slice_, between_votes_;
  SlowRead& slow_;
  std::function<bool()> stop_requested_;
  TimePoint voted_at_{};
};

}  // namespace ddprun::trainer
