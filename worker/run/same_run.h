#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "worker/data/dataset.h"
#include "worker/run/session.h"

namespace ddprun::trainer {

// What tells one data set from another at little cost: shapes and names, and a checksum of three samples (data in
// memory) or of the file names (pictures).
std::string fingerprint(const data::Dataset& dataset, const std::string& format, std::uint64_t seed);

// All that the ranks must have in common beside the model (the reducer compares that), as name and text.
using Traits = std::vector<std::pair<std::string, std::string>>;
Traits traits_of(const Session& session);

// This rank's part of the comparison: an error naming the first trait in which it differs from rank 0
// ("train.seed: rank 0 has 7, rank 1 has 8"). Collective; for agree().
Result<void> same_as_rank_zero(comm::Communicator& communicator, const Traits& mine);

}  // namespace ddprun::trainer
