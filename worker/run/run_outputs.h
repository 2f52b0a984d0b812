#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/result.h"
#include "worker/checkpoint/state.h"
#include "worker/config/config.h"
#include "worker/engine/parameter_store.h"
#include "worker/ranks/ranks.h"
#include "worker/report/metrics.h"
#include "worker/report/tensorboard.h"

namespace ddprun::trainer {

// The files under `output` in the configuration: metrics, sample indices, TensorBoard, parameters. What an earlier run
// had written beyond the checkpoint that this one goes on from is cut off. A file that fails later (a full disk) is
// said and given up: it must not end a run. Only the parameters, written at the end, are an error then.
class RunOutputs {
 public:
  // All arguments are kept.
  RunOutputs(const OutputConfig& config, const Ranks& ranks, const checkpoint::TrainState& state)
      : config_(config), ranks_(ranks), state_(state) {}

  // On every rank. Errors begin with the key: what cannot be written is found before the first step.
  Result<void> open();

  std::int64_t index_bytes() const { return indices_ ? indices_->size_bytes() : 0; }  // of this rank's file

  // A step's samples are kept until after_step(): a step that is not made leaves none behind.
  void begin_step() { used_.clear(); }
  void use_samples(std::int64_t epoch, std::span<const std::int64_t> indices);
  void after_step(const StepMetrics& metrics);
  void add_metrics(const std::string& line);                           // a whole line for output.metrics
  void scalar(std::string_view tag, std::int64_t step, double value);  // to TensorBoard, if it is wanted

  // output.params, rank 0 at the end. Errors: the file cannot be written.
  Result<void> write_params(const engine::ParameterStore& store) const;

 private:
  Result<void> open_indices();

  const OutputConfig& config_;
  const Ranks& ranks_;
  const checkpoint::TrainState& state_;
  std::optional<LineFile> metrics_, indices_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::string used_;  // index lines of the step in work
};

}  // namespace ddprun::trainer
