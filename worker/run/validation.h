#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/checkpoint/state.h"
#include "worker/config/config.h"
#include "worker/ranks/batch_wait.h"
#include "worker/ranks/ranks.h"
#include "worker/ranks/stop_signal.h"
#include "worker/report/confusion.h"
#include "worker/run/evaluate.h"
#include "worker/run/run_data.h"
#include "worker/run/run_model.h"

namespace ddprun::trainer {

// A figure of the validation set by its name in metrics.jsonl and in checkpoint.best.
struct Figure {
  std::string name;  // loss, perplexity, accuracy, top5
  double value = 0;
};

// What one pass over the validation set tells, of all ranks together.
std::vector<Figure> figures_of(const EvalCounts& counts, const data::SampleSpec& spec);
std::string words_of(const std::vector<Figure>& figures);  // "validation loss 0.1, validation accuracy 97.10 %"

// When the validation set is evaluated, what came of it, and what follows: the best checkpoint and the early end. What
// must survive a restart is in `state`.
class Validation {
 public:
  // All arguments are kept.
  Validation(const TrainerConfig& config, Ranks& ranks, RunModel& model, RunData& data, checkpoint::TrainState& state,
             const StopSignal& stop, SlowRead& slow);

  // Do the data have what checkpoint.best and validation.confusion ask for? Errors begin with the key.
  Result<void> check() const;
  bool wanted() const { return data_.validation.dataset != nullptr; }
  bool at_start() const { return wanted() && config_.validation.at_start && state_.step == 0; }
  bool after_step() const;
  bool after_epoch() const { return wanted() && config_.validation.every_steps == 0; }
  bool is_current() const { return validated_at_ == state_.step; }

  // The whole set. false: a stop signal came before its end, on some rank. file_timeout: how long ranks may wait for a
  // slower one. Collective.
  Result<bool> run(std::chrono::milliseconds file_timeout);

  const std::vector<Figure>& figures() const { return figures_; }  // of the last run(); empty: none yet
  std::string json_line() const;                                   // of the last run(), for metrics.jsonl
  bool is_news() const { return is_news_; }                        // it was not counted before a restart
  bool is_best() const { return is_best_; }                        // of all so far
  bool patience_is_over() const;
  // Rank 0: validation.confusion, if it is wanted. Errors begin with the key.
  Result<void> write_confusion() const;

 private:
  void judge();

  const TrainerConfig& config_;
  Ranks& ranks_;
  RunModel& model_;
  RunData& data_;
  checkpoint::TrainState& state_;
  const StopSignal& stop_;
  SlowRead& slow_;
  std::vector<Figure> figures_;
  EvalCounts counts_;
  std::int64_t validated_at_ = -1;
  bool is_news_ = false, is_best_ = false;
};

}  // namespace ddprun::trainer
