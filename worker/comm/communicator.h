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

namespace ddprun::comm {

enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64 };
enum class Reduce : std::uint8_t { sum, avg, min, max };

std::size_t size_of(DType dtype);
const char* name_of(DType dtype);  // "f32"
const char* name_of(Reduce op);

// Contiguous elements. Memory from allocate() is reduced in place without a copy, other memory is staged.
struct Block {
  void* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::f32;
};

// One collective that was started. Movable; a handle dropped without wait() is reported in the log and counted.
// wait() runs the operation itself if it is next and nobody has begun it.
class Work {
 public:
  class State;

  Work() = default;
  explicit Work(std::shared_ptr<State> state);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  bool done() const;
  // Errors: timed_out naming op, sequence number and the missing ranks; peer_closed naming the rank that died;
  // invalid_argument when ranks disagree on op, dtype or count (both sides are named); cancelled after abort().
  // After an error only abort() and destruction are legal on the communicator.
  Result<void> wait();
  Result<void> wait_until(TimePoint deadline);

 private:
  std::shared_ptr<State> state_;
};

// A set of ranks that can talk. All ranks must call the same collectives in the same order with the same counts; a
// difference is an error on both sides before bytes mix. Thread: one caller at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description() const = 0;  // "shm 4 ranks", for logs and bench

  // In place over `data`.
  virtual Work all_reduce(Block data, Reduce op) = 0;
  virtual Work broadcast(Block data, int root) = 0;
  // `all` holds world_size * mine.count elements, rank-major.
  virtual Work all_gather(Block mine, Block all) = 0;
  // `all` holds world_size * mine.count elements; rank r receives the reduced r-th part.
  virtual Work reduce_scatter(Block all, Block mine, Reduce op) = 0;
  virtual Result<void> barrier() = 0;

  // Memory that collectives reduce in place (64-byte aligned, zeroed, lives as long as the communicator).
  // Same call with the same size in the same order on every rank.
  virtual Result<std::byte*> allocate(std::size_t size_bytes) = 0;

  // Wakes everybody, here and on the other ranks: pending and later calls end with cancelled and this reason.
  virtual void abort(const std::string& reason) = 0;

  // Deadline of every wait that is not given its own.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  // Collectives started so far: the sequence number of the next one.
  virtual std::uint64_t sequence() const = 0;
};

// Ragged gather: sizes first, then the exact bytes. Result: every rank's elements, rank-major.
Result<std::vector<std::byte>> all_gather_concat(Communicator& communicator, std::span<const std::byte> mine);

}  // namespace ddprun::comm
