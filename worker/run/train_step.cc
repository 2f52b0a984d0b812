#include "worker/run/train_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/optim/clip.h"
#include "worker/report/progress.h"
#include "worker/run/leak_check.h"

namespace ddprun::trainer {

TrainStep::TrainStep(const TrainerConfig& config, Ranks& ranks, RunModel& model, RunData& data,
                     checkpoint::TrainState& state, StopSignal& stop, RunOutputs& outputs, SlowRead& slow)
    : config_(config),
      ranks_(ranks),
      model_(model),
      data_(data),
      state_(state),
      stop_(stop),
      outputs_(outputs),
      batch_wait_(ranks.communicator(), *data.train.loader, config.ddp.timeout, slow,
                  [&stop] { return stop.requested() != 0; }),
      batch_(config.data.batch_size) {}

// Sum over this step's samples. On a GPU this is the step's wait for its forward passes.
double TrainStep::collect_losses() {
  double sum = 0;
  for (const MicroLoss& loss : losses_)
    sum += model_.kernels->finish_read(loss.mean) * static_cast<double>(loss.samples);
  losses_.clear();
  return sum;
}

Result<void> TrainStep::micro_batch(double weight, bool last, std::int64_t& samples) {
  auto batch = data_.train.loader->next();
  if (!batch) return std::move(batch).error();
  CHECK(*batch != nullptr, "the loader has as many batches as the loop asks for");
  const data::Batch& b = **batch;
  auto planned = model_.plans->get(b.size, /*training=*/true);
  if (!planned) return std::move(planned).error();
  engine::Plan& plan = *(*planned)->plan;
  const engine::Model& inputs = (*planned)->model;
  auto loaded = plan.load(inputs.input, b.inputs);
  if (loaded) loaded = plan.load(inputs.target, b.targets);
  if (!loaded) {
    return std::move(loaded).error().with_context(data_.train.dataset->name_of(b.indices.front()) +
                                                  " and the batch after it");
  }
  engine::RandomKey key;
  key.seed = config_.train.seed;
  key.step = static_cast<std::uint64_t>(state_.step);
  key.stream = static_cast<std::uint32_t>(samples / batch_ * ranks_.world_size() + ranks_.rank());
  plan.forward(key);
  losses_.push_back({plan.loss_later(), b.size});
  engine::BackwardOptions options;
  options.loss_scale = weight * model_.scaler.scale();
  model_.reducer->begin(last ? ddp::Sync::now : ddp::Sync::later);
  options.accumulate = model_.reducer->accumulate();
  plan.backward(options, [this](engine::ParamId id) { model_.reducer->mark_ready(id.index); });
  samples += b.size;
  outputs_.use_samples(state_.epoch, b.indices);
  return {};
}

// Waits until this rank's next batch is there and, before gradients are exchanged, every rank's. false: a stop signal
// came while some rank had none, and no step is made.
Result<bool> TrainStep::batch_is_there(bool last) {
  // With accumulation the ranks' batches of a step do not come at the same time: then they always meet.
  const bool known = !others_wait_ && config_.train.accumulate == 1;
  auto wait = batch_wait_.wait(!last ? Meet::later : known ? Meet::not_needed : Meet::now);
  if (!wait) return std::move(wait).error();
  if (wait->outcome == BatchOutcome::failed) {
    auto ended = ranks_.check_on_all(std::move(wait->mine));
    if (!ended) return std::move(ended).error();
  }
  return wait->outcome == BatchOutcome::ready;
}

// This rank cannot do a micro-batch before the step's last one: the others are, or soon will be, in a vote on their
// batches.
Error TrainStep::give_up(Error mine) {
  auto told = batch_wait_.give_up();
  if (!told) return mine;  // explains more
  auto ended = ranks_.check_on_all(mine);
  return ended ? mine : std::move(ended).error();
}

// A rank that cannot do its part of the last micro-batch (an unreadable sample) still takes part in this step's
// collectives, so that no other rank waits for it; the vote that follows tells them, and nobody uses the gradients.
Result<void> TrainStep::take_part_without_work(bool buffers_sent) {
  if (!buffers_sent) {
    auto sent = broadcast_buffers(ranks_, model_);
    if (!sent) return sent;
  }
  model_.reducer->begin(ddp::Sync::now);
  for (const ddp::BucketView& view : model_.reducer->buckets()) {
    for (const ddp::ParamId id : view.bucket->parameters) model_.reducer->mark_ready(id);
  }
  auto report = model_.reducer->finish();
  if (!report) return std::move(report).error();
  return {};
}

// All ranks know that the mean is not finite; whose loss was it?
Result<void> TrainStep::bad_loss(double own_loss) {
  Result<void> mine;
  if (!std::isfinite(own_loss)) {
    mine = Error(Errc::invalid_argument,
                 fmt::format("step {}: the loss of rank {} is {}. Lower optimizer.lr, set optimizer.clip_grad_norm, or "
                             "use train.on_nan: skip",
                             state_.step + 1, ranks_.rank(), format_loss(own_loss)));
  }
  return ranks_.check_on_all(std::move(mine));
}

// All micro-batches of this rank, and the exchange of gradients. Errors: all ranks end; `work.mine`: this rank's, which
// the vote tells the others.
Result<void> TrainStep::work_on(std::int64_t planned, Work& work) {
  bool reduced = false;  // this step's gradients have been exchanged
  bool buffers_sent = config_.ddp.sync_buffers != SyncBuffers::step;
  while (work.samples < planned && work.mine) {
    const std::int64_t size = std::min(batch_, planned - work.samples);
    const bool last = work.samples + size == planned;
    auto there = batch_is_there(last);
    if (!there) return std::move(there).error();
    work.stopped = !*there;
    if (work.stopped) return {};
    if (last && config_.ddp.sync_buffers == SyncBuffers::step) {
      auto sent = broadcast_buffers(ranks_, model_);
      if (!sent) return sent;
      buffers_sent = true;
    }
    work.mine = micro_batch(static_cast<double>(size) / static_cast<double>(planned), last, work.samples);
    if (!work.mine && !last) return give_up(std::move(work.mine).error());
    if (!work.mine) break;
    auto report = model_.reducer->finish();
    if (!report) return std::move(report).error();
    reduced = last;
  }
  work.loss_sum = collect_losses();
  if (work.mine) work.mine = model_.kernels->status();  // a GPU's queued calls fail here
  if (!work.mine && !reduced) {
    auto done = take_part_without_work(buffers_sent);
    if (!done) return std::move(work.mine);
  }
  if (work.mine) work.mine = check_memory();
  return {};
}

Result<void> TrainStep::check_memory() const {
  const std::int64_t limit = config_.train.memory_limit_mb;
  if (limit == 0) return {};
  const std::int64_t resident = resident_bytes();
  if (resident <= limit * std::int64_t{1'000'000}) return {};
  return Error(Errc::system, fmt::format("step {}: {:.0f} MB of resident memory, above train.memory_limit_mb {}",
                                         state_.step + 1, static_cast<double>(resident) / 1e6, limit));
}

// One small all-reduce carries all that the ranks must agree on: loss, stop signals, failures.
Result<void> TrainStep::vote(Work& work, StepResult& result) {
  const auto next_batch = data_.train.loader->wait(std::chrono::milliseconds(0));
  double counts[6] = {
      work.loss_sum,         static_cast<double>(work.samples),     stop_.requested() != 0 ? 1.0 : 0.0,
      work.mine ? 0.0 : 1.0, next_batch && *next_batch ? 0.0 : 1.0, stop_.take_save_request() ? 1.0 : 0.0};
  auto voted = ddp::sync_metrics(ranks_.communicator(), counts, comm::Reduce::sum);
  if (!voted) return work.mine ? std::move(voted) : std::move(work.mine);  // our own failure explains more
  if (counts[3] > 0) {
    auto ended = ranks_.check_on_all(std::move(work.mine));
    if (!ended) return ended;
  }
  others_wait_ = counts[4] > 0;
  result.loss_sum = counts[0];
  result.samples = static_cast<std::int64_t>(counts[1]);
  result.loss = counts[0] / counts[1];
  result.stop = counts[2] > 0;
  result.save = counts[5] > 0;
  return {};
}

// The optimizer's step, unless loss or gradient is not finite: then it is skipped, or the run ends.
Result<void> TrainStep::update(double own_loss, double lr, StepResult& result) {
  const bool scaled = config_.precision.scale_loss;
  const bool must_be_finite = !scaled && config_.train.on_nan == OnNan::stop;
  if (!std::isfinite(result.loss) && must_be_finite) {
    auto bad = bad_loss(own_loss);
    if (!bad) return bad;
  }
  const optim::GradientSummary gradients = optim::summarise_gradients(*model_.store, model_.scaler.inverse());
  result.grad_norm = gradients.norm;
  result.skipped = gradients.found_inf || !std::isfinite(result.loss);
  if (result.skipped && must_be_finite) {
    return ranks_.fail_everywhere(
        fmt::format("step {}: the gradient is not finite (loss {}). Lower optimizer.lr, set "
                    "optimizer.clip_grad_norm, or use train.on_nan: skip",
                    state_.step + 1, format_loss(result.loss)));
  }
  if (result.skipped && scaled && model_.scaler.scale() < 1e-6) {
    return ranks_.fail_everywhere(
        fmt::format("step {}: gradients are not finite at a loss scale of {:.3g}: the run has diverged",
                    state_.step + 1, model_.scaler.scale()));
  }
  if (!result.skipped) {
    optim::GradientFactors factors;
    factors.unscale = model_.scaler.inverse();
    factors.clip = optim::clip_factor(gradients.norm, config_.update.clip_grad_norm);
    model_.optimizer->step(lr, factors);
  }
  if (scaled) model_.scaler.update(result.skipped);
  return {};
}

Result<StepResult> TrainStep::run(std::int64_t samples_left, double lr) {
  const std::int64_t planned = std::min(samples_left, samples_per_rank());
  losses_.clear();
  outputs_.begin_step();
  batch_wait_.begin_step();
  Work work;
  auto done = work_on(planned, work);
  if (!done) return std::move(done).error();
  if (work.stopped) return StepResult{.stop = true, .made = false};
  StepResult result;
  done = vote(work, result);
  if (done) done = update(work.loss_sum / static_cast<double>(work.samples), lr, result);
  if (!done) return std::move(done).error();

  ++state_.step;
  state_.cursor += planned * ranks_.world_size();
  state_.skipped_steps += result.skipped ? 1 : 0;
  state_.optimizer_steps = model_.optimizer->steps();
  state_.scale = static_cast<float>(model_.scaler.scale());
  state_.growth_tracker = model_.scaler.state().growth_tracker;
  if (std::isfinite(result.loss)) {
    state_.epoch_loss_sum += result.loss_sum;
    state_.epoch_loss_count += result.samples;
  }
  return result;
}

}  // namespace ddprun::trainer
