#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/comm/fork_mark.h"
#include "worker/comm/operation.h"
#include "worker/comm/shm_bootstrap.h"

namespace ddprun::comm {

// The ranks of one host around one piece of memory: who is where, waiting with deadlines, memory of the peers, and how
// a failure gets to everybody. The algorithms are in shm_transport.cc and hierarchical_transport.cc.
//
// Each rank has a counter, `phase`, that it alone raises: once when it arrives at an operation (after it has published
// what the operation is), once more at each further step(). Everybody waits until all counters have caught up.
// What a rank publishes for operation s lies in slot s % 2: a rank can be at most one operation ahead of the slowest,
// since it cannot leave s + 1 before all have arrived there.
class ShmGroup {
 public:
  // Memory of the group as a rank-independent number: region and offset. kForeign: not ours.
  using Handle = std::uint64_t;
  static constexpr Handle kForeign = ~Handle{0};
  static constexpr std::size_t kFlatBytes = 16 * 1024;

  // Maps the control area. `staging_bytes`: of each of the four staging buffers of a rank. Errors: system.
  static Result<std::unique_ptr<ShmGroup>> create(ShmSetup setup, std::size_t staging_bytes);
  // Tells the others that this rank is done: those that still wait for it get its name at once.
  ~ShmGroup();
  ShmGroup(const ShmGroup&) = delete;
  ShmGroup& operator=(const ShmGroup&) = delete;

  int local_rank() const { return local_rank_; }
  int local_size() const { return size_; }
  int rank_of(int local) const { return members_[static_cast<std::size_t>(local)].rank; }
  int rank() const { return rank_of(local_rank_); }

  // Publishes `op` and where its data lies, waits for the others, and checks that all are in the same operation.
  Result<void> arrive(Operation& op, Handle in = kForeign, Handle out = kForeign);
  // A barrier inside the operation: what was written before it is seen by all after it.
  Result<void> step(Operation& op);
  // After arrive(): where the data of `local` lies.
  Handle in_of(int local) const;
  Handle out_of(int local) const;

  Handle find(const void* data, std::size_t size_bytes) const;
  std::byte* address(Handle handle, int local) const;
  // Two small buffers (kFlatBytes), alternating with the operations; written before arrive(), read after it.
  std::byte* flat(const Operation& op, int local) const;
  // Staging buffers 0 and 1 for input, 2 and 3 for results.
  std::byte* staging(int which, int local) const;
  std::size_t staging_bytes() const { return staging_bytes_; }

  Result<std::byte*> allocate(Operation& op);

  // Publishes `error` as this rank's verdict if there is none yet, wakes everybody, and returns the verdict.
  Error fail(const Error& error);
  void abort(const std::string& reason);
  // Somebody's verdict, as this rank should tell it.
  std::optional<Error> verdict() const;
  bool usable_here() const { return fork_mark_.here(); }

  // A verdict, or a peer that has died (not one that has only left), without waiting.
  std::optional<Error> news();
  // Called about every 20 ms while waiting, for news from outside the group.
  void set_watch(std::function<std::optional<Error>()> watch) { watch_ = std::move(watch); }
  // Added to the deadline in step(): a rank that has arrived may itself wait for another host, and will tell what it
  // learns there.
  void set_grace(Duration grace) { grace_ = grace; }

 private:
  struct Control;
  struct RankArea;
  struct Descriptor;
  struct Region {
    std::byte* memory = nullptr;
    std::size_t stride = 0;
  };

  ShmGroup(ShmSetup setup, std::size_t staging_bytes);
  Result<void> map();
  RankArea& area(int local) const;
  const Descriptor& descriptor(int local) const;
  void choose_patience();
  void publish_phase();
  Result<void> await_all(Operation& op, Duration grace);
  Result<void> await_slowly(Operation& op, int local, Duration grace);
  Result<void> check_peers(Operation& op, TimePoint since, Duration grace);
  bool somebody_is_stopped() const;
  Error timed_out(Operation& op, TimePoint since);
  Error too_slow(Operation& op, int local);
  void wake_all();

  ShmSetup setup_;
  int local_rank_ = 0;
  int size_ = 1;
  std::vector<ShmMember>& members_;
  std::size_t staging_bytes_ = 0;
  int spin_turns_ = 0;
  int yield_turns_ = 0;
  std::byte* base_ = nullptr;
  std::size_t base_bytes_ = 0;
  std::size_t file_end_ = 0;
  std::vector<Region> regions_;
  std::uint32_t phase_ = 0;
  std::uint64_t sequence_ = 0;  // of the operation arrived at
  ForkMark fork_mark_;
  std::function<std::optional<Error>()> watch_;
  Duration grace_{0};
  TimePoint next_look_{};  // news(): at most once in 20 ms
};

}  // namespace ddprun::comm
