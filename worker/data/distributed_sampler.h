#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::data {

struct SamplerOptions {
  std::int64_t samples = 0;  // n, samples in the data set
  std::int64_t world_size = 1;
  std::int64_t rank = 0;
  bool shuffle = true;
  bool drop_last = false;          // cut the tail instead of repeating samples from the start of the order
  std::int64_t whole_batches = 0;  // cut each rank's share to a multiple of this: DataLoader's drop_last; 0: do not
  std::uint64_t seed = 0;          // the same on all ranks
};

// Which samples a rank uses in an epoch, and in which order: index for index what torch 2.15's DistributedSampler
// gives.
//
// The order of an epoch is one list on all ranks. Rank r of W takes entries r, r+W, ... of it, so after s steps of b
// samples a rank exactly the first s*b*W entries are used. That number is the cursor: a run goes on from it with any W,
// and no sample is lost or used twice.
class DistributedSampler {
 public:
  explicit DistributedSampler(const SamplerOptions& options);

  // Entries of the epoch's list that are left from `cursor` on, as this rank's share. Every rank gets equally many:
  // ceil(left / W), the fill being entries from the start of the list; with drop_last floor(left / W). With
  // whole_batches the rest of that which fills no batch is cut off.
  std::vector<std::int64_t> indices(std::int64_t epoch, std::int64_t cursor = 0) const;

  // Length of indices(), the same on all ranks and in all epochs.
  std::int64_t samples_per_rank(std::int64_t cursor = 0) const;

 private:
  SamplerOptions options_;
};

}  // namespace ddprun::data
