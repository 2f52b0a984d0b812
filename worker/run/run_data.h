#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/result.h"
#include "worker/config/config.h"
#include "worker/data/dataset.h"
#include "worker/data/distributed_sampler.h"
#include "worker/data/loader.h"

namespace ddprun::trainer {

struct DataPart {
  std::shared_ptr<const data::Dataset>
      dataset;              // shared, since a loader's thread that hangs in a read outlives the run
  std::string fingerprint;  // see fingerprint.h
  std::unique_ptr<data::Loader> loader;
};

struct RunData {
  DataPart train;
  DataPart validation;  // dataset null: no evaluation
  std::unique_ptr<data::DistributedSampler> sampler;
};

// Data and this rank's share of them; loaders come with start_loaders(). config gets what the data decide (see
// open_data()). limit: reading whole files may take this long. Errors begin with the key.
Result<RunData> open_run_data(TrainerConfig& config, int rank, int world_size, std::chrono::milliseconds limit);
Result<void> start_loaders(const TrainerConfig& config, RunData& data);

}  // namespace ddprun::trainer
