#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/data/dataset.h"

namespace ddprun::data {

// Memory for batches; the device back end gives page-locked memory so that copies to it can run beside the maths.
using HostMemory = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;
using HostAllocator = std::function<HostMemory(std::size_t size_bytes)>;
HostAllocator plain_memory();  // 64-byte aligned

struct LoaderOptions {
  std::int64_t batch_size = 1;
  int num_workers = 2;      // 0: next() reads in the caller's thread
  int prefetch_factor = 2;  // batches ready or in work per thread
  bool persistent_workers = true;
  std::uint64_t seed = 0;
  std::chrono::milliseconds timeout{300'000};  // of one batch; the error names the sample that was slow
  HostAllocator allocate = plain_memory();
};

struct Batch {
  std::int64_t size = 0;
  const std::byte* inputs = nullptr;   // size * spec().input_bytes()
  const std::byte* targets = nullptr;  // size * spec().target_bytes()
  std::span<const std::int64_t> indices;
};

// Batches in order, made ahead by threads. What is in a batch depends on (seed, epoch, indices) only, never on the
// number of threads. A sample that cannot be read is an error of its own batch, at its turn.
class Loader {
 public:
  // `dataset` must outlive the loader.
  Loader(const Dataset& dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Starts on these samples, in groups of batch_size; the last one may be shorter. Ends the epoch before, read or not.
  void begin_epoch(std::int64_t epoch, std::vector<std::int64_t> indices);
  std::int64_t batches() const;  // of this epoch

  // The next batch, valid until the next call; nullptr after the last. Errors: the sample's own; timed_out naming the
  // samples in work. After an error only begin_epoch() and destruction are legal.
  Result<const Batch*> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddprun::data
