#pragma once

#include <cstdint>
#include <string>

#include "common/result.h"

namespace ddprun::trainer {

// What this process holds. Taken once an epoch: nothing of it may grow.
struct ResourceUse {
  std::int64_t rss_bytes = 0;
  std::int64_t arena_bytes = 0;  // parameters, gradients, activations: exact
  std::int64_t device_bytes = 0;
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t works = 0;    // collectives' handles that are alive: none between steps
  std::int64_t dropped = 0;  // handles that went without wait(), so far: a bug of ours
};

// Reads /proc/self; arena and device bytes, works and dropped are the caller's to fill in.
Result<ResourceUse> measure_resources();
std::int64_t resident_bytes();  // cheap enough for every step; 0 if /proc cannot be read

// Tells a leak from a state that changes. A leak grows with each epoch; a plan for another batch size that an epoch
// needs for the first time, or a save that has a file open at this moment, does not.
class GrowthWatch {
 public:
  // What has grown in this epoch and in the one before, with the sum of both; "" if nothing. Memory may move by
  // 2 % + 8 MB an epoch. Work handles of collectives are said at once.
  std::string next(const ResourceUse& now);

 private:
  ResourceUse before_, last_;
  int measured_ = 0;
};

std::string describe(const ResourceUse& use);  // "memory 31.2 MB resident, arena 12.0 MB, 9 descriptors, ..."

}  // namespace ddprun::trainer
