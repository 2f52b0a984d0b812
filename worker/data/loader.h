#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/data/dataset.h"

namespace ddprun::data {

struct LoaderOptions {
  std::int64_t batch_size = 1;
  int num_workers = 2;      // 0: nothing is read ahead; one thread reads a batch when it is asked for
  int prefetch_factor = 2;  // batches ready or in work per thread
  bool persistent_workers = true;
  std::uint64_t seed = 0;
  std::chrono::milliseconds timeout{300'000};  // of one batch, from the first wait for it
  std::chrono::milliseconds grace{500};        // what a read may still take at the end
};

struct Batch {
  std::int64_t size = 0;
  const std::byte* inputs = nullptr;   // size * spec().input_bytes(); 64-byte aligned
  const std::byte* targets = nullptr;  // size * spec().target_bytes()
  std::span<const std::int64_t> indices;
};

// Batches in order, made ahead by threads. What is in a batch depends on (seed, epoch, indices) only, never on the
// number of threads. A sample that cannot be read is an error of its own batch, at its turn.
//
// A read may hang (a file server that is gone). So all reading is done in threads, no wait is without a limit, and
// a thread that hangs is left behind at the end: it owns a share of all that it touches. Thread: one caller.
class Loader {
 public:
  // Errors: system when there is no memory for the batches, with the sizes.
  static Result<std::unique_ptr<Loader>> create(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();  // takes at most options.grace
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Starts on these samples, in groups of batch_size; the last one may be shorter. Ends the epoch before, read or not.
  // Errors: timed_out when a read of the epoch before hangs; system when a thread cannot be started.
  Result<void> begin_epoch(std::int64_t epoch, std::vector<std::int64_t> indices);
  std::int64_t batches() const;  // of this epoch

  // true: next() will not wait. false: `limit` is over. The batch before is given up, as by next().
  // Errors: timed_out naming the samples in work, when options.timeout is over.
  Result<bool> wait(std::chrono::milliseconds limit);
  // The next batch, valid until the next call; nullptr after the last. Errors: the sample's own; those of wait().
  // After an error only begin_epoch() and destruction are legal.
  Result<const Batch*> next();
  std::string in_work() const;  // names of the samples that are being read, for messages

 private:
  struct State;
  explicit Loader(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace ddprun::data
