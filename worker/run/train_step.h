#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "worker/checkpoint/state.h"
#include "worker/config/config.h"
#include "worker/ranks/batch_wait.h"
#include "worker/ranks/ranks.h"
#include "worker/ranks/stop_signal.h"
#include "worker/run/run_data.h"
#include "worker/run/run_model.h"
#include "worker/run/run_outputs.h"

namespace ddprun::trainer {

struct StepResult {
  double loss = 0;           // mean over `samples`
  double loss_sum = 0;       // over them
  std::int64_t samples = 0;  // of all ranks
  double grad_norm = 0;      // before clipping
  bool skipped = false;
  bool stop = false;  // a signal reached some rank
  bool save = false;  // SIGUSR2 reached some rank
  bool made = true;   // false: stopped before the step, since data did not come
};

// One step of training on every rank at once: micro-batches, the exchange of their gradients, the ranks' vote on how it
// went, the optimizer.
class TrainStep {
 public:
  // All arguments are kept.
  TrainStep(const TrainerConfig& config, Ranks& ranks, RunModel& model, RunData& data, checkpoint::TrainState& state,
            StopSignal& stop, RunOutputs& outputs, SlowRead& slow);

  std::int64_t samples_per_rank() const { return batch_ * config_.train.accumulate; }  // of a whole step
  void begin_epoch() { others_wait_ = true; }
  // Collective. samples_left: of this rank in the epoch, the same on all. Moves `state` on. Errors: on all
  // ranks with one cause, which one of them tells.
  Result<StepResult> run(std::int64_t samples_left, double lr);

 private:
  struct Work {  // of this rank
    std::int64_t samples = 0;
    double loss_sum = 0;
    Result<void> mine;     // why it could not be done
    bool stopped = false;  // by a signal, before the last micro-batch, on every rank
  };
  struct MicroLoss {
    engine::Kernels::PendingRead mean;
    std::int64_t samples;
  };

  Result<void> work_on(std::int64_t planned, Work& work);
  Result<void> micro_batch(double weight, bool last, std::int64_t& samples);
  Result<bool> batch_is_there(bool last);
  Error give_up(Error mine);
  double collect_losses();
  Result<void> take_part_without_work(bool buffers_sent);
  Result<void> check_memory() const;
  Result<void> vote(Work& work, StepResult& result);
  Result<void> bad_loss(double own_loss);
  Result<void> update(double own_loss, double lr, StepResult& result);

  const TrainerConfig& config_;
  Ranks& ranks_;
  RunModel& model_;
  RunData& data_;
  checkpoint::TrainState& state_;
  StopSignal& stop_;
  RunOutputs& outputs_;
  BatchWait batch_wait_;
  const std::int64_t batch_;
  bool others_wait_ = true;        // perhaps some rank's next batch is not there yet
  std::vector<MicroLoss> losses_;  // of the step in work; read at its end
};

}  // namespace ddprun::trainer
