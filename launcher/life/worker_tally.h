#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/types.h"

namespace ddprun::launcher {

// How a worker ended. `signal` 0: it exited with `code`.
struct WorkerEnd {
  LocalRank worker;
  std::int64_t pid = 0;
  int code = 0;
  int signal = 0;
  bool asked = false;  // we had told it to stop before
  TimePoint at;
  std::chrono::system_clock::time_point time;  // the same moment by the wall clock, for people

  bool success() const { return signal == 0 && code == 0; }
};

// Who of one attempt's workers still runs and how the others ended, and what that means for the node. The job's budget
// is the rendezvous's business. Pure.
//   exit 0    its part is done; the others run on
//   exit 75   "saved, resume me": never a failure if all of the node end so
//   exit 78   a failure that a retry cannot mend
//   else      a failure
class WorkerTally {
 public:
  enum class Verdict {
    carry_on,
    failed,     // `blamed` is the one to blame
    finished,   // all exited 0
    resumable,  // all exited 75
  };

  explicit WorkerTally(std::int64_t nproc) : ends_(static_cast<std::size_t>(nproc)) {}

  // A worker that ended; said twice it counts once. What ended because it was asked to is no verdict.
  Verdict on(const WorkerEnd& end);
  // The others did not follow the first that ended with 75 within their time: it is to blame.
  Verdict nobody_followed();

  bool runs(LocalRank worker) const;
  std::vector<LocalRank> running() const;
  bool all_ended() const;
  bool all_saved() const;                                 // each ended with 75, asked or not
  const WorkerEnd* end_of(LocalRank worker) const;        // null: it runs, or there is no such worker
  const WorkerEnd* blamed() const;                        // after `failed`
  std::vector<const WorkerEnd*> early_finishers() const;  // ended with 0, unasked, in the order of ranks

 private:
  std::vector<std::optional<WorkerEnd>> ends_;  // by local rank
  std::optional<LocalRank> blamed_;
  std::optional<LocalRank> first_saved_;
};

// "rank 3", "ranks 0, 2..7", at most `limit` pieces, then "and 12 more". `first` is added to each.
std::string ranks_text(const std::vector<LocalRank>& workers, Rank first, std::size_t limit = 8);

}  // namespace ddprun::launcher
