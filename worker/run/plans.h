#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "common/result.h"
#include "worker/engine/plan.h"
#include "worker/models/models.h"

namespace ddprun::trainer {

// A model recorded and planned for one batch size, in one mode.
struct PlannedModel {
  engine::Model model;
  std::unique_ptr<engine::Plan> plan;
};

// Plans of one model by (batch size, mode), made when first needed: the full batch, and the short one at an epoch's
// end. They share the parameters.
class Plans {
 public:
  Plans(engine::ModelConfig model, engine::LossConfig loss, engine::ParameterStore& store,
        bool activation_checkpointing)
      : model_(std::move(model)), loss_(loss), store_(store), activation_checkpointing_(activation_checkpointing) {}

  Result<PlannedModel*> get(std::int64_t batch_size, bool training);
  std::size_t activation_bytes() const;  // of all plans made so far

 private:
  engine::ModelConfig model_;
  engine::LossConfig loss_;
  engine::ParameterStore& store_;
  bool activation_checkpointing_;
  std::map<std::pair<std::int64_t, bool>, PlannedModel> plans_;
};

}  // namespace ddprun::trainer
