#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/result.h"
#include "worker/data/dataset.h"

// Data sets that are made of others.
namespace ddprun::data {

// All samples of one after those of the other. Errors: invalid_argument when they do not look alike.
Result<std::unique_ptr<Dataset>> concat(std::vector<std::unique_ptr<Dataset>> parts);

// The share `share` of `dataset` that is held back, or the rest of it: a random choice that depends on the size and the
// seed only, in the order of the data set. Errors: invalid_argument when one of the two would be empty.
Result<std::unique_ptr<Dataset>> split_off(std::unique_ptr<Dataset> dataset, double share, std::uint64_t seed,
                                           bool held_back);

}  // namespace ddprun::data
