#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "worker/tensor/dtype.h"
#include "worker/tensor/reduce.h"

namespace ddprun::comm {

using ddprun::DType;
using ddprun::name_of;
using ddprun::Reduce;
using ddprun::size_of;

// Contiguous elements. Memory from allocate() is reduced in place without a copy, other memory is staged.
struct Block {
  void* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::f32;

  std::size_t size_bytes() const { return count * size_of(dtype); }
};

// One collective that was started. Movable. A handle that goes without wait() is counted and reported, and waits then,
// since the memory may go next; if an exception takes it away, the communicator is aborted on all ranks.
// wait() runs the operation itself if it is next and nobody has begun it.
class Work {
 public:
  // What a communicator hands out; see queued_communicator.cc and nccl_communicator.cc.
  class State {
   public:
    virtual ~State() = default;
    virtual bool done() const = 0;
    // nullptr: the communicator's own timeout, counted from the call.
    virtual Result<void> wait(const TimePoint* deadline) = 0;
    virtual void dropped() noexcept = 0;  // the handle went away and nobody had waited
  };

  Work() = default;
  explicit Work(std::shared_ptr<State> state);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  bool valid() const { return state_ != nullptr; }
  bool done() const;
  // Errors: timed_out naming op, sequence number and the missing ranks; peer_closed naming the rank that died or
  // returned early; invalid_argument when ranks disagree on op, dtype or count (both sides are named); cancelled after
  // abort(). After an error only abort() and destruction are legal on the communicator. May be called again: same
  // answer.
  Result<void> wait();
  Result<void> wait_until(TimePoint deadline);

 private:
  Result<void> wait_impl(const TimePoint* deadline);

  std::shared_ptr<State> state_;
  bool waited_ = false;
};

// A set of ranks that can talk. All ranks must call the same collectives in the same order with the same counts; a
// difference is an error on both sides before bytes mix. Thread: one caller at a time; abort() from any thread.
// Sums are taken in a fixed order: the same bits on every rank and in every run; 16-bit types add up in f32.
// avg divides the sum once by world_size (integers: towards zero). min and max keep a NaN.
// There is no send and recv between two ranks: gradients, parameters and metrics need none, and what goes between hosts
// (rings over TCP, NCCL) has connections of its own below this interface.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description() const = 0;  // "shm 4 ranks", for logs and bench
  // Some ranks are on other hosts: then compression of gradients can pay.
  virtual bool crosses_hosts() const = 0;
  // allocate() gives memory of a device; collectives take device and host memory then.
  virtual bool device_memory() const = 0;

  // In place over `data`, which must stay alive and untouched until wait().
  virtual Work all_reduce(Block data, Reduce op) = 0;
  virtual Work broadcast(Block data, int root) = 0;
  // `all` holds world_size * mine.count elements, rank-major.
  virtual Work all_gather(Block mine, Block all) = 0;
  // `all` holds world_size * mine.count elements; rank r receives the reduced r-th part. `all` may be overwritten.
  virtual Work reduce_scatter(Block all, Block mine, Reduce op) = 0;
  virtual Result<void> barrier() = 0;

  // Memory that collectives reduce in place (page-aligned, zeroed, lives as long as the communicator).
  // Same call with the same size in the same order on every rank. Waits for all earlier collectives.
  virtual Result<std::byte*> allocate(std::size_t size_bytes) = 0;

  // Wakes everybody, here and on the other ranks: pending and later calls end with cancelled and this reason.
  virtual void abort(const std::string& reason) = 0;

  // Deadline of every wait that is not given its own.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  // Collectives started so far: the sequence number of the next one.
  virtual std::uint64_t sequence() const = 0;
  // Handles that were dropped without wait(): a bug in the caller; the leak check looks at it.
  virtual std::uint64_t dropped_handles() const = 0;
  // Work handles that are alive now, waited for or not (a handle keeps its tensor's record until it goes). 0 between
  // steps, or somebody collects them: the leak check looks at this too.
  virtual std::uint64_t live_works() const = 0;
};

// Ragged gather: sizes first, then the bytes (padded to the longest). Result: every rank's bytes, rank-major; `sizes`,
// if not null, gets the number of bytes of each rank.
Result<std::vector<std::byte>> all_gather_concat(Communicator& communicator, std::span<const std::byte> mine,
                                                 std::vector<std::size_t>* sizes = nullptr);

}  // namespace ddprun::comm
