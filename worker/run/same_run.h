#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "worker/comm/communicator.h"
#include "worker/config/config.h"
#include "worker/run/run_data.h"

namespace ddprun::trainer {

// All that the ranks must have in common beside the model (the reducer compares that), as name and text.
using Traits = std::vector<std::pair<std::string, std::string>>;
Traits traits_of(const TrainerConfig& config, const RunData& data);
// The same in a checkpoint, so that a run that goes on can say what was changed.
inline constexpr const char* kRunFile = "run.json";
std::string traits_to_json(const Traits& traits);
Traits traits_from_json(const std::string& text);  // what it can read of it

// This rank's part of the comparison: an error naming the first trait in which it differs from rank 0
// ("train.seed: rank 0 has 7, rank 1 has 8"). Collective; for agree().
Result<void> same_as_rank_zero(comm::Communicator& communicator, const Traits& mine);

}  // namespace ddprun::trainer
