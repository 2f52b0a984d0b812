#pragma once

#include <memory>

#include "common/result.h"
#include "worker/config/config.h"
#include "worker/data/dataset.h"

namespace ddprun::trainer {

struct OpenedData {
  std::shared_ptr<const data::Dataset> train;
  std::shared_ptr<const data::Dataset> validation;  // null: no evaluation
};

// How the readers shall open data.train (training) or data.validation.
data::DatasetOptions dataset_options(const TrainerConfig& config, bool training);

// Opens the data, takes from them what the configuration leaves open (the model's inputs, image size, classes), and
// checks that model, training and validation data belong together. What the readers left out becomes a warning of the
// configuration. Errors begin with the key, and name the file.
Result<OpenedData> open_data(TrainerConfig& config);

}  // namespace ddprun::trainer
