#include "worker/train_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/clock.h"
#include "common/exit_code.h"
#include "common/log.h"
#include "worker/cuda/device_context.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/evaluate.h"
#include "worker/leak_check.h"
#include "worker/optim/clip.h"
#include "worker/progress.h"
#include "worker/session.h"
#include "worker/tensorboard.h"

namespace ddprun::trainer {
namespace {

// While one rank reads or writes files the others wait for it much longer than for a gradient.
constexpr std::chrono::milliseconds kFileTimeout{600'000};

double seconds_since(TimePoint start) { return std::chrono::duration<double>(SteadyClock::now() - start).count(); }

// One line per sample: "epoch index".
std::string index_lines(std::int64_t epoch, std::span<const std::int64_t> indices) {
  std::string lines;
  for (const std::int64_t index : indices) lines += fmt::format("{} {}\n", epoch, index);
  return lines;
}

// A full disk must not end a run; its checkpoints say what they think of it themselves.
void append_or_end(std::optional<LineFile>& file, const std::string& lines) {
  if (!file) return;
  auto written = file->append(lines);
  if (written) return;
  log_warning("{}; this file ends here", written.error().message());
  file.reset();
}

class TrainLoop {
 public:
  TrainLoop(Session& session, StopSignal& stop, Reporter& reporter)
      : s_(session), stop_(stop), reporter_(reporter), batch_(session.config.data.batch_size) {}

  Result<int> run();

 private:
  struct StepResult {
    double loss = 0;
    std::int64_t samples = 0;  // of all ranks
    bool skipped = false;
    bool stop = false;  // a signal reached some rank
  };

  void plan_length();
  Result<void> open_outputs();
  void say_start();
  Result<void> run_epoch(bool& stopped);
  Result<StepResult> step(std::int64_t samples_left);
  Result<void> micro_batch(double weight, bool last, std::int64_t& samples);
  double collect_losses();
  Result<void> take_part_without_work(bool buffers_sent);
  Error everywhere(const std::string& message);
  Result<void> bad_loss(double own_loss);
  void update(double mean_loss, StepResult& result);
  Result<void> after_step(const StepResult& result, double lr, double scale, TimePoint started);
  Result<void> end_epoch();
  Result<void> validate();
  Result<void> check_resources();
  Result<void> save(bool wait);
  Result<int> finish(bool stopped);
  Result<void> write_params();
  bool at_end() const {
    return s_.state.epoch >= s_.config.train.epochs ||
           (s_.config.train.max_steps > 0 && s_.state.step >= s_.config.train.max_steps);
  }
  std::string index_path(std::size_t rank) const {
    return fmt::format("{}/rank-{}.txt", s_.config.output.indices, rank);
  }
  std::int64_t samples_per_step() const { return batch_ * s_.config.train.accumulate; }  // of one rank

  Session& s_;
  StopSignal& stop_;
  Reporter& reporter_;
  const std::int64_t batch_;
  std::int64_t steps_per_epoch_ = 0, total_steps_ = 0;
  std::int64_t step_in_epoch_ = 0;
  std::optional<LineFile> metrics_, indices_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::string used_;  // index lines of the step in work
  struct MicroLoss {
    engine::Kernels::PendingRead mean;
    std::int64_t samples;
  };
  std::vector<MicroLoss> losses_;  // of the step in work; read at its end
  double validation_accuracy_ = -1;
  EvalCounts validation_;
  std::int64_t validated_at_ = -1;
  std::int64_t saved_at_ = -1;
  std::optional<ResourceUse> resources_;
  TimePoint window_start_{}, run_start_{};
  std::int64_t window_samples_ = 0, steps_done_ = 0;
  double samples_per_s_ = 0;
};

void TrainLoop::plan_length() {
  const std::int64_t share = s_.sampler->samples_per_rank();
  steps_per_epoch_ = (share + samples_per_step() - 1) / samples_per_step();
  total_steps_ = steps_per_epoch_ * s_.config.train.epochs;
  if (s_.config.train.max_steps > 0) total_steps_ = std::min(total_steps_, s_.config.train.max_steps);
  optim::Schedule& schedule = s_.config.schedule;
  if (schedule.total_steps == 0) schedule.total_steps = total_steps_;
}

Result<void> TrainLoop::open_outputs() {
  const OutputConfig& output = s_.config.output;
  Result<void> good;
  const auto keep = [&good](Result<LineFile> file, std::optional<LineFile>& into) {
    if (file) {
      into = std::move(*file);
    } else if (good) {
      good = std::move(file).error();
    }
  };
  if (!output.metrics.empty() && s_.is_root()) {
    auto bytes = metrics_bytes_up_to(output.metrics, s_.state.step);
    if (!bytes) return std::move(bytes).error().with_context("output.metrics");
    keep(LineFile::open(output.metrics, *bytes), metrics_);
  }
  if (!output.indices.empty()) {
    const auto& sizes = s_.state.index_bytes;
    const auto me = static_cast<std::size_t>(s_.rank());
    const std::int64_t bytes = me < sizes.size() ? sizes[me] : 0;
    keep(LineFile::open(index_path(me), bytes), indices_);
    // Files of ranks that this world no longer has.
    for (std::size_t k = static_cast<std::size_t>(s_.world_size()); s_.is_root() && k < sizes.size(); ++k) {
      std::optional<LineFile> cut;
      keep(LineFile::open(index_path(k), sizes[k]), cut);
    }
  }
  if (!output.tensorboard.empty() && s_.is_root()) {
    auto writer = TensorBoardWriter::open(output.tensorboard, s_.state.step);
    if (!writer) return std::move(writer).error().with_context("output.tensorboard");
    tensorboard_ = std::move(*writer);
  }
  return good;
}

void TrainLoop::say_start() {
  for (const std::string& note : s_.notes) reporter_.line(note);
  reporter_.line(fmt::format("model {}: {} parameters; {} samples; {} rank(s), {}; {}; batch {} x {} x accumulate {}",
                             s_.config.model.name, s_.store->trainable_count(), s_.train_data->size(), s_.world_size(),
                             s_.communicator->description(), s_.kernels->description(), batch_, s_.world_size(),
                             s_.config.train.accumulate));
}

Result<int> TrainLoop::run() {
  plan_length();
  auto ready = s_.together(open_outputs());
  if (!ready) return std::move(ready).error();
  s_.communicator->set_timeout(s_.config.ddp.timeout);
  say_start();
  stop_.arm();
  run_start_ = window_start_ = SteadyClock::now();
  bool stopped = false;
  while (!stopped && !at_end()) {
    auto done = run_epoch(stopped);
    if (!done) return std::move(done).error();
  }
  return finish(stopped);
}

Result<void> TrainLoop::run_epoch(bool& stopped) {
  std::vector<std::int64_t> share = s_.sampler->indices(s_.state.epoch, s_.state.cursor);
  auto left = static_cast<std::int64_t>(share.size());
  auto equal = ddp::check_equal(*s_.communicator, "samples left in the epoch", left);
  if (!equal) return equal;
  const std::int64_t steps_left = (left + samples_per_step() - 1) / samples_per_step();
  step_in_epoch_ = std::max<std::int64_t>(0, steps_per_epoch_ - steps_left);
  s_.train_loader->begin_epoch(s_.state.epoch, std::move(share));
  while (left > 0) {
    const TimePoint started = SteadyClock::now();
    const double lr = s_.config.schedule.at(s_.state.step);
    const double scale = s_.scaler.scale();
    auto result = step(left);
    if (!result) return std::move(result).error();
    left -= std::min(left, samples_per_step());
    auto done = after_step(*result, lr, scale, started);
    if (!done) return done;
    stopped = result->stop;
    if (stopped || at_end()) break;
    if (s_.config.train.step_delay.count() > 0) std::this_thread::sleep_for(s_.config.train.step_delay);
  }
  return left == 0 ? end_epoch() : Result<void>();
}

// Sum over this step's samples. On a GPU this is the step's wait for its forward passes.
double TrainLoop::collect_losses() {
  double sum = 0;
  for (const MicroLoss& loss : losses_) sum += s_.kernels->finish_read(loss.mean) * static_cast<double>(loss.samples);
  losses_.clear();
  return sum;
}

Result<void> TrainLoop::micro_batch(double weight, bool last, std::int64_t& samples) {
  auto batch = s_.train_loader->next();
  if (!batch) return std::move(batch).error();
  CHECK(*batch != nullptr, "the loader has as many batches as the loop asks for");
  const data::Batch& b = **batch;
  auto planned = s_.plans->get(b.size, /*training=*/true);
  if (!planned) return std::move(planned).error();
  engine::Plan& plan = *(*planned)->plan;
  const engine::Model& model = (*planned)->model;
  auto loaded = plan.load(model.input, b.inputs);
  if (loaded) loaded = plan.load(model.target, b.targets);
  if (!loaded) {
    return std::move(loaded).error().with_context(s_.train_data->name_of(b.indices.front()) +
                                                  " and the batch after it");
  }
  engine::RandomKey key;
  key.seed = s_.config.train.seed;
  key.step = static_cast<std::uint64_t>(s_.state.step);
  key.stream = static_cast<std::uint32_t>(samples / batch_ * s_.world_size() + s_.rank());
  plan.forward(key);
  losses_.push_back({plan.loss_later(), b.size});
  engine::BackwardOptions options;
  options.loss_scale = weight * s_.scaler.scale();
  s_.reducer->begin(last ? ddp::Sync::now : ddp::Sync::later);
  options.accumulate = s_.reducer->accumulate();
  plan.backward(options, [this](engine::ParamId id) { s_.reducer->mark_ready(id.index); });
  samples += b.size;
  if (indices_) used_ += index_lines(s_.state.epoch, b.indices);
  return {};
}

// A rank that cannot do its part (an unreadable sample) still takes part in this step's collectives, so that no other
// rank waits for it; the vote that follows tells them, and nobody uses the gradients.
Result<void> TrainLoop::take_part_without_work(bool buffers_sent) {
  if (!buffers_sent) {
    auto sent = broadcast_buffers(s_);
    if (!sent) return sent;
  }
  s_.reducer->begin(ddp::Sync::now);
  for (const ddp::BucketView& view : s_.reducer->buckets()) {
    for (const ddp::ParamId id : view.bucket->parameters) s_.reducer->mark_ready(id);
  }
  auto report = s_.reducer->finish();
  if (!report) return std::move(report).error();
  return {};
}

Result<TrainLoop::StepResult> TrainLoop::step(std::int64_t samples_left) {
  const std::int64_t planned = std::min(samples_left, samples_per_step());
  std::int64_t samples = 0;
  used_.clear();
  losses_.clear();
  Result<void> mine;
  bool reduced = false;  // this step's gradients have been exchanged
  bool buffers_sent = s_.config.ddp.sync_buffers != SyncBuffers::step;
  while (samples < planned && mine) {
    const std::int64_t size = std::min(batch_, planned - samples);
    const bool last = samples + size == planned;
    if (last && s_.config.ddp.sync_buffers == SyncBuffers::step) {
      auto sent = broadcast_buffers(s_);
      if (!sent) return std::move(sent).error();
      buffers_sent = true;
    }
    mine = micro_batch(static_cast<double>(size) / static_cast<double>(planned), last, samples);
    if (!mine) break;
    auto report = s_.reducer->finish();
    if (!report) return std::move(report).error();
    reduced = last;
  }
  const double loss_sum = collect_losses();
  if (mine) mine = s_.kernels->status();  // a GPU's queued calls fail here
  if (!mine && (mine.error().code() == Errc::peer_closed || mine.error().code() == Errc::cancelled)) {
    return std::move(mine).error();  // the communicator is gone: nothing to take part in
  }
  if (!mine && !reduced) {
    auto done = take_part_without_work(buffers_sent);
    if (!done) return std::move(mine).error();
  }
  const bool too_large = s_.config.train.memory_limit_mb > 0 &&
                         resident_bytes() > s_.config.train.memory_limit_mb * std::int64_t{1'000'000};
  if (too_large && mine) {
    mine = Error(Errc::system,
                 fmt::format("step {}: {:.0f} MB of resident memory, above train.memory_limit_mb {}", s_.state.step + 1,
                             static_cast<double>(resident_bytes()) / 1e6, s_.config.train.memory_limit_mb));
  }
  // One small all-reduce carries all that the ranks must agree on: loss, stop signals, failures.
  double vote[4] = {loss_sum, static_cast<double>(samples), stop_.requested() != 0 ? 1.0 : 0.0, mine ? 0.0 : 1.0};
  auto voted = ddp::sync_metrics(*s_.communicator, vote, comm::Reduce::sum);
  if (!voted) return mine ? std::move(voted).error() : std::move(mine).error();  // our own failure explains more
  if (vote[3] > 0) {
    auto ended = s_.together(std::move(mine));
    if (!ended) return std::move(ended).error();
  }
  StepResult result;
  result.samples = static_cast<std::int64_t>(vote[1]);
  result.loss = vote[0] / vote[1];
  result.stop = vote[2] > 0;
  if (!std::isfinite(result.loss) && !s_.config.precision.scale_loss && s_.config.train.on_nan == OnNan::stop) {
    auto bad = bad_loss(loss_sum / static_cast<double>(samples));
    if (!bad) return std::move(bad).error();
  }
  const optim::GradientSummary gradients = optim::summarise_gradients(*s_.store, s_.scaler.inverse());
  result.skipped = gradients.found_inf || !std::isfinite(result.loss);
  if (result.skipped && !s_.config.precision.scale_loss && s_.config.train.on_nan == OnNan::stop) {
    return everywhere(
        fmt::format("step {}: the gradient is not finite (loss {}). Lower optimizer.lr, set "
                    "optimizer.clip_grad_norm, or use train.on_nan: skip",
                    s_.state.step + 1, result.loss));
  }
  if (result.skipped && s_.config.precision.scale_loss && s_.scaler.scale() < 1e-6) {
    return everywhere(fmt::format("step {}: gradients are not finite at a loss scale of {:.3g}: the run has diverged",
                                  s_.state.step + 1, s_.scaler.scale()));
  }
  if (!result.skipped) {
    optim::GradientFactors factors;
    factors.unscale = s_.scaler.inverse();
    factors.clip = optim::clip_factor(gradients.norm, s_.config.clip_grad_norm);
    s_.optimizer->step(s_.config.schedule.at(s_.state.step), factors);
  }
  if (s_.config.precision.scale_loss) s_.scaler.update(result.skipped);

  checkpoint::TrainState& state = s_.state;
  ++state.step;
  state.cursor += planned * s_.world_size();
  state.skipped_steps += result.skipped ? 1 : 0;
  state.optimizer_steps = s_.optimizer->steps();
  state.scale = static_cast<float>(s_.scaler.scale());
  state.growth_tracker = s_.scaler.state().growth_tracker;
  if (std::isfinite(result.loss)) {
    state.epoch_loss_sum += vote[0];
    state.epoch_loss_count += result.samples;
  }
  return result;
}

// An error that every rank meets at once, since gradients are equal: rank 0 says it.
Error TrainLoop::everywhere(const std::string& message) {
  Error error(Errc::invalid_argument, message);
  auto told = s_.together(s_.is_root() ? Result<void>(error) : Result<void>());
  return told ? error : std::move(told).error();
}

// All ranks know that the mean is not finite; whose loss was it?
Result<void> TrainLoop::bad_loss(double own_loss) {
  Result<void> mine;
  if (!std::isfinite(own_loss)) {
    mine = Error(Errc::invalid_argument,
                 fmt::format("step {}: the loss of rank {} is {}. Lower optimizer.lr, set optimizer.clip_grad_norm, or "
                             "use train.on_nan: skip",
                             s_.state.step + 1, s_.rank(), own_loss));
  }
  return s_.together(std::move(mine));
}

Result<void> TrainLoop::after_step(const StepResult& result, double lr, double scale, TimePoint started) {
  ++step_in_epoch_;
  ++steps_done_;
  window_samples_ += result.samples;
  const double took = seconds_since(started);
  append_or_end(indices_, used_);
  append_or_end(metrics_, to_json_line(StepMetrics{.step = s_.state.step,
                                                   .epoch = s_.state.epoch,
                                                   .loss = result.loss,
                                                   .lr = lr,
                                                   .scale = scale,
                                                   .skipped = result.skipped,
                                                   .samples_per_s = static_cast<double>(result.samples) / took}));
  if (result.skipped) {
    reporter_.line(fmt::format("step {}: skipped, not finite (loss scale {:.6g})", s_.state.step, scale));
  }
  ProgressState progress;
  progress.epoch = s_.state.epoch;
  progress.epochs = s_.config.train.epochs;
  progress.step = step_in_epoch_;
  progress.steps_in_epoch = steps_per_epoch_;
  progress.loss = result.loss;
  progress.lr = lr;
  const double per_step = seconds_since(run_start_) / static_cast<double>(steps_done_);
  progress.eta_s = per_step * static_cast<double>(std::max<std::int64_t>(0, total_steps_ - s_.state.step));
  const bool due = s_.state.step % s_.config.log.every_steps == 0;
  if (due || samples_per_s_ == 0) samples_per_s_ = static_cast<double>(window_samples_) / seconds_since(window_start_);
  progress.samples_per_s = samples_per_s_;
  if (s_.config.model.name == "gpt2") {
    progress.tokens_per_s = samples_per_s_ * static_cast<double>(s_.config.data.sequence_length);
  }
  reporter_.bar(progress);
  if (due) {
    window_start_ = SteadyClock::now();
    window_samples_ = 0;
    if (!reporter_.has_bar()) reporter_.line(progress_line(progress));
    if (tensorboard_) {
      tensorboard_->scalar("train/loss", s_.state.step, result.loss);
      tensorboard_->scalar("train/lr", s_.state.step, lr);
      tensorboard_->scalar("train/samples_per_s", s_.state.step, samples_per_s_);
    }
  }
  const CheckpointConfig& checkpoint = s_.config.checkpoint;
  if (!checkpoint.dir.empty() && checkpoint.every_steps > 0 && s_.state.step % checkpoint.every_steps == 0) {
    // Rank 0 waits here for a disk that is slower than the saves: the others wait with it, longer than for a gradient.
    s_.communicator->set_timeout(kFileTimeout);
    auto done = save(/*wait=*/false);
    if (done) done = s_.communicator->barrier();
    s_.communicator->set_timeout(s_.config.ddp.timeout);
    return done;
  }
  return {};
}

// Collective when index files are written. A save that fails is said and the run goes on: what was saved before is
// still there, and the next save may find room again.
Result<void> TrainLoop::save(bool wait) {
  if (!s_.config.output.indices.empty()) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(s_.world_size()));
    std::int64_t mine = indices_ ? indices_->size_bytes() : 0;
    auto gathered = s_.communicator
                        ->all_gather(comm::Block{&mine, 1, comm::DType::i64},
                                     comm::Block{sizes.data(), sizes.size(), comm::DType::i64})
                        .wait();
    if (!gathered) return gathered;
    // Ranks that were there before this world was made smaller keep what they wrote.
    auto& known = s_.state.index_bytes;
    known.resize(std::max(known.size(), sizes.size()));
    std::copy(sizes.begin(), sizes.end(), known.begin());
  }
  saved_at_ = s_.state.step;
  if (s_.writer == nullptr) return {};
  // The save before this one: how it went says nothing about this one.
  auto before = wait ? s_.writer->wait() : Result<void>();
  auto started = start_save(s_);
  if (before && !wait) before = s_.writer->poll();
  if (!before) {
    const std::int64_t last = s_.writer->last_saved_step();
    log_error(
        "checkpoint not saved: {}; {}, training goes on", before.error().message(),
        last >= 0 ? fmt::format("the one of step {} is untouched", last) : std::string("earlier ones are untouched"));
  }
  if (!started || !wait) return started;
  auto outcome = s_.writer->wait();
  return outcome ? outcome : Result<void>(std::move(outcome).error().with_context("checkpoint not saved"));
}

Result<void> TrainLoop::end_epoch() {
  checkpoint::TrainState& state = s_.state;
  auto equal = ddp::check_equal(*s_.communicator, "checksum of the parameters", parameter_checksum(s_));
  if (!equal) return equal;
  const double mean =
      state.epoch_loss_count > 0 ? state.epoch_loss_sum / static_cast<double>(state.epoch_loss_count) : 0;
  const std::int64_t epoch = state.epoch + 1;
  if (s_.validation_data != nullptr) {
    auto validated = validate();
    if (!validated) return validated;
  }
  std::string text = fmt::format("epoch {}/{} done: mean loss {:.4f}", epoch, s_.config.train.epochs, mean);
  if (s_.validation_data != nullptr) {
    text += fmt::format(", validation loss {:.4f}", validation_.loss());
    if (validation_accuracy_ >= 0) text += fmt::format(", validation accuracy {:.2f} %", 100 * validation_accuracy_);
  }
  text += fmt::format(", {:.0f} samples/s, {} elapsed", samples_per_s_, format_duration(seconds_since(run_start_)));
  reporter_.line(text);
  if (tensorboard_) {
    tensorboard_->scalar("epoch/loss", state.step, mean);
    if (s_.validation_data != nullptr) tensorboard_->scalar("validation/loss", state.step, validation_.loss());
    if (validation_accuracy_ >= 0) tensorboard_->scalar("validation/accuracy", state.step, validation_accuracy_);
    tensorboard_->flush();
  }
  auto checked = check_resources();
  if (!checked) return checked;
  ++state.epoch;
  state.cursor = 0;
  state.epoch_loss_sum = 0;
  state.epoch_loss_count = 0;
  window_start_ = SteadyClock::now();
  window_samples_ = 0;
  return {};
}

Result<void> TrainLoop::validate() {
  auto sent = broadcast_buffers(s_);
  if (!sent) return sent;
  auto counts =
      evaluate_share(*s_.validation_data, *s_.validation_loader, *s_.plans, s_.config.loss, s_.rank(), s_.world_size());
  // Shares differ by one sample at most, but a rank may be slow: wait as for files.
  s_.communicator->set_timeout(kFileTimeout);
  auto all = s_.together(counts ? s_.kernels->status() : Result<void>(counts.error()));
  s_.communicator->set_timeout(s_.config.ddp.timeout);
  if (!all) return all;
  double sums[4] = {counts->loss_sum, static_cast<double>(counts->targets), static_cast<double>(counts->correct),
                    static_cast<double>(counts->samples)};
  auto summed = ddp::sync_metrics(*s_.communicator, sums, comm::Reduce::sum);
  if (!summed) return summed;
  validation_ = EvalCounts{sums[0], static_cast<std::int64_t>(sums[1]), static_cast<std::int64_t>(sums[2]),
                           static_cast<std::int64_t>(sums[3])};
  const data::SampleSpec& spec = s_.validation_data->spec();
  if (spec.classes > 0 && spec.target_count() == 1) validation_accuracy_ = validation_.accuracy();
  validated_at_ = s_.state.step;
  return {};
}

// What is held must not grow from epoch to epoch. The first epoch fills caches and makes plans: it is the measure.
Result<void> TrainLoop::check_resources() {
  if (!s_.config.log.memory_check) return {};
  auto use = measure_resources();
  if (!use) {
    log_warning("{}", use.error().message());
    return {};
  }
  if (s_.device != nullptr) use->device_bytes = static_cast<std::int64_t>(s_.device->allocated_bytes());
  use->arena_bytes = static_cast<std::int64_t>(s_.store->parameter_bytes() + s_.store->gradient_bytes() +
                                               s_.plans->activation_bytes());
  std::string text = describe(*use);
  if (resources_) {
    const std::string grown = growth(*resources_, *use);
    if (!grown.empty()) text += "; GREW since the epoch before: " + grown;
  }
  reporter_.line(text);
  resources_ = *use;
  return {};
}

Result<void> TrainLoop::write_params() {
  nlohmann::ordered_json json;
  for (const engine::Parameter& p : s_.store->parameters()) {
    const std::vector<float> values = s_.store->read_f32(p.id);
    const bool bias = p.name.find("bias") != std::string::npos;
    if (bias && values.size() == 1) {
      json["bias"] = values[0];
    } else {
      json[bias ? "bias" : "weight"] = values;
    }
  }
  json["step"] = s_.state.step;
  auto file = LineFile::open(s_.config.output.params, 0);
  if (!file) return std::move(file).error().with_context("output.params");
  return file->append(json.dump() + "\n");
}

Result<int> TrainLoop::finish(bool stopped) {
  if (!stopped && s_.validation_data != nullptr && validated_at_ != s_.state.step) {
    auto validated = validate();
    if (!validated) return std::move(validated).error();
  }
  s_.communicator->set_timeout(kFileTimeout);
  Result<void> mine;
  if (!s_.config.checkpoint.dir.empty()) {
    // The periodic save of this very step may still be under way.
    mine = saved_at_ != s_.state.step || stopped ? save(/*wait=*/true)
           : s_.writer != nullptr ? s_.writer->wait()
                                                 : Result<void>();
  }
  if (mine && !stopped && s_.is_root() && !s_.config.output.params.empty()) mine = write_params();
  if (mine) mine = s_.kernels->status();
  auto all = s_.together(std::move(mine));
  if (!all) return std::move(all).error();
  stop_.disarm();
  if (tensorboard_) tensorboard_->flush();
  if (stopped) {
    const int signal = stop_.requested();
    if (s_.config.checkpoint.dir.empty()) {
      reporter_.line(
          fmt::format("stopped by a signal after step {}; no checkpoint.dir, nothing was saved", s_.state.step));
      return exit_code::kSignalBase + (signal != 0 ? signal : 15);
    }
    reporter_.line(fmt::format("stopped by a signal after step {}; state saved in {}: start again to go on",
                               s_.state.step, s_.config.checkpoint.dir));
    return exit_code::kResumeMe;
  }
  reporter_.line(
      fmt::format("finished after step {} in {}", s_.state.step, format_duration(seconds_since(run_start_))));
  if (validated_at_ >= 0 && validation_accuracy_ < 0) {
    reporter_.line(fmt::format("validation loss {:.6f}", validation_.loss()));
  }
  if (validation_accuracy_ >= 0)
    reporter_.line(fmt::format("validation accuracy {:.2f} %", 100 * validation_accuracy_));
  return exit_code::kOk;
}

}  // namespace

int train(const TrainerConfig& config, const WorkerEnv& env, StopSignal& stop) {
  const auto fail = [&env](const Error& error, bool is_said) {
    if (!is_said) say_error(env, error);
    return exit_code_of(error);
  };
  bool error_is_said = false;
  auto session = open_session(config, env, error_is_said);
  if (!session) return fail(session.error(), error_is_said);
  Session& s = **session;
  Reporter reporter(config.log.file, /*quiet=*/!s.is_root());
  TrainLoop loop(s, stop, reporter);
  auto code = loop.run();
  if (!code) return fail(code.error(), s.error_is_said);
  return *code;
}

}  // namespace ddprun::trainer
