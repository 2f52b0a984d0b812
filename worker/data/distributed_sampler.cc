#include "worker/data/distributed_sampler.h"

#include <numeric>

#include "common/check.h"
#include "worker/data/randperm.h"

namespace ddprun::data {

DistributedSampler::DistributedSampler(const SamplerOptions& options) : options_(options) {
  CHECK(options.samples >= 0, "a data set has no negative size");
  CHECK(options.world_size > 0 && options.rank >= 0 && options.rank < options.world_size, "rank within the world");
}

std::int64_t DistributedSampler::samples_per_rank(std::int64_t cursor) const {
  const std::int64_t left = options_.samples - cursor;
  if (left <= 0) return 0;
  const std::int64_t share =
      options_.drop_last ? left / options_.world_size : (left + options_.world_size - 1) / options_.world_size;
  return options_.whole_batches > 0 ? share - share % options_.whole_batches : share;
}

std::vector<std::int64_t> DistributedSampler::indices(std::int64_t epoch, std::int64_t cursor) const {
  const std::int64_t mine = samples_per_rank(cursor);
  std::vector<std::int64_t> result;
  if (mine == 0) return result;
  result.reserve(static_cast<std::size_t>(mine));
  std::vector<std::int64_t> order;
  if (options_.shuffle) order = randperm(options_.samples, options_.seed + static_cast<std::uint64_t>(epoch));
  for (std::int64_t k = 0; k < mine; ++k) {
    const std::int64_t at = (cursor + options_.rank + k * options_.world_size) % options_.samples;
    result.push_back(options_.shuffle ? order[static_cast<std::size_t>(at)] : at);
  }
  return result;
}

}  // namespace ddprun::data
