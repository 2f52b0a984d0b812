#pragma once

#include <string>
#include <vector>

#include "worker/config/config.h"
#include "worker/data/dataset.h"

namespace ddprun::trainer {

// What `trainer --check` says beside "good": every key with its value, then, where the data can be opened here,
// samples, parameters, memory and steps. Lines without their ends. world_size: ranks that will train.
std::vector<std::string> preview(TrainerConfig config, int world_size);

// What `trainer data` shows of a data set: sizes, classes with their counts, range of the inputs, the first samples.
std::vector<std::string> describe_data(const data::Dataset& dataset, std::uint64_t seed);

}  // namespace ddprun::trainer
