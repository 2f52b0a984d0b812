#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "worker/comm/communicator.h"
#include "worker/ddp/bucket.h"

// How one bucket of gradients is averaged over the ranks: the place for compression.
namespace ddprun::ddp {

struct BucketView {
  std::size_t index = 0;
  const Bucket* bucket = nullptr;
  std::span<const ParameterInfo> parameters;  // all of the model; bucket->parameters index into it
  comm::Block buffer;                         // bucket->count elements in communicator memory
  bool is_last = false;
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  virtual std::string_view name() const = 0;
  // Once, with all buckets, before the first step; may allocate() (the same on every rank).
  virtual Result<void> prepare(comm::Communicator& communicator, std::span<const BucketView> buckets) = 0;
  // Starts the exchange; in bucket order, the same on every rank.
  virtual Result<void> start(comm::Communicator& communicator, const BucketView& view) = 0;
  // Ends it: afterwards view.buffer holds the mean over the ranks. In bucket order, after every start().
  virtual Result<void> finish(comm::Communicator& communicator, const BucketView& view) = 0;
};

// Rounds `count` elements to another type in memory that the host cannot read: a GPU's, queued behind the kernels that
// make the gradients. Empty: the memory is the host's.
using CastElements =
    std::function<void(comm::DType from, comm::DType to, const void* in, void* out, std::size_t count)>;

// Mean in the bucket's own type, in place.
std::unique_ptr<CommHook> make_plain_hook();
// f32 buckets travel as f16 or bf16: rounded to nearest even once here, summed and divided in f32, rounded once more
// (on GPUs NCCL divides and sums in the wire's type, as torch's hooks do there). What overflows f16 becomes inf on
// every rank. Buckets of other types go as they are.
std::unique_ptr<CommHook> make_cast_hook(comm::DType wire, CastElements cast = {});
// Rank-`rank` approximation with error feedback (PowerSGD) of parameters with two or more dimensions; the others go as
// they are. `seed` must be the same on every rank.
std::unique_ptr<CommHook> make_power_sgd_hook(int rank, std::uint64_t seed);

// "none", "fp16", "bf16", "powersgd" or "powersgd:RANK" (default 1; host memory only). Errors: invalid_argument naming
// them.
Result<std::unique_ptr<CommHook>> make_hook(std::string_view name, CastElements cast = {});

}  // namespace ddprun::ddp
