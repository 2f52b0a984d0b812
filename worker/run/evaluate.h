#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/result.h"
#include "worker/data/loader.h"
#include "worker/ranks/batch_wait.h"
#include "worker/run/plans.h"

namespace ddprun::trainer {

// Sums over samples, so that shares of several ranks add up to exact figures of the whole set.
struct EvalCounts {
  double loss_sum = 0;       // over targets
  std::int64_t targets = 0;  // samples; tokens for language models; without those of loss.ignore_index
  std::int64_t correct = 0;  // class with the largest output is the target; not counted for sequences
  std::int64_t in_top5 = 0;  // the target is among the five largest outputs
  std::int64_t samples = 0;
  std::vector<double> confusion = {};  // classes x classes, targets by rows, if it was wanted
  bool stopped = false;                // a stop signal came: the rest of the share was left out

  double loss() const { return targets > 0 ? loss_sum / static_cast<double>(targets) : 0; }
  double top5_accuracy() const { return targets > 0 ? static_cast<double>(in_top5) / static_cast<double>(targets) : 0; }
  double accuracy() const { return targets > 0 ? static_cast<double>(correct) / static_cast<double>(targets) : 0; }
};

// What goes on while a share is evaluated.
struct EvalControl {
  std::function<bool()> stop_requested;
  std::chrono::milliseconds slice;  // how often it is asked while data do not come
  SlowRead& slow;
  bool confusion = false;  // count which class was taken for which
};

// This rank's part of the validation set: samples rank, rank + W, ...; no sample twice, however the set divides.
// No collective inside.
Result<EvalCounts> evaluate_share(const data::Dataset& dataset, data::Loader& loader, Plans& plans,
                                  const engine::LossConfig& loss, std::int64_t rank, std::int64_t world_size,
                                  const EvalControl& control);

}  // namespace ddprun::trainer
