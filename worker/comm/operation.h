#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/flight_recorder.h"
#include "worker/comm/communicator.h"

namespace ddprun::comm {

enum class OpKind : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter, barrier, allocate };
const char* name_of(OpKind kind);

// What all ranks must agree on. `count` is of one rank's part (allocate: bytes).
struct Signature {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  OpKind kind = OpKind::barrier;
  Reduce reduce = Reduce::sum;
  DType dtype = DType::f32;
  std::int32_t root = 0;

  friend bool operator==(const Signature&, const Signature&) = default;
  // "all_reduce #1042 of 4096 f32", "broadcast #7 of 10 i64 from rank 0", "barrier #8"; reductions other than sum are
  // named.
  std::string describe() const;
};

// "rank 3 is in all_reduce #1042 of 4096 f32, rank 0 in broadcast #1042 of 10 i64"
std::string describe_mismatch(int rank, const Signature& theirs, int own_rank, const Signature& ours);

// One collective on its way through a Transport.
struct Operation {
  Signature signature;
  Block in;                        // all_reduce, broadcast: the data; all_gather: mine; reduce_scatter: all
  Block out;                       // all_gather: all; reduce_scatter: mine
  std::byte* allocated = nullptr;  // allocate: the result
  MissingRanks missing;            // after a failure: ranks that did not come
  static constexpr std::chrono::seconds kDidNotRun{1};
  std::optional<TimePoint> last_look;  // of its waiter, see look()
  // Steady time in ns; a waiter with its own deadline may move it while the operation runs.
  std::atomic<std::int64_t> deadline_ns{0};

  TimePoint deadline() const {
    return TimePoint(std::chrono::nanoseconds(deadline_ns.load(std::memory_order_relaxed)));
  }
  // Whoever waits looks at the clock every 20 ms. A look that comes a second late means that this process did not run
  // (SIGSTOP, scontrol suspend): that time does not count, or each such pause of a whole job would cost a restart and
  // the work since the last save. True: the deadline is later now.
  bool look(TimePoint now) {
    const auto before = std::exchange(last_look, now);
    if (!before || now - *before < kDidNotRun) return false;
    set_deadline(deadline() + (now - *before));
    return true;
  }
  void set_deadline(TimePoint at) { deadline_ns.store(at.time_since_epoch().count(), std::memory_order_relaxed); }
};

}  // namespace ddprun::comm
