#include "worker/run/train_loop.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "common/exit_code.h"
#include "common/log.h"
#include "worker/ddp/sync_metrics.h"
#include "worker/device/device_context.h"
#include "worker/models/flops.h"
#include "worker/ranks/batch_wait.h"
#include "worker/ranks/run_error.h"
#include "worker/report/progress.h"
#include "worker/run/advice.h"
#include "worker/run/leak_check.h"
#include "worker/run/open_run.h"
#include "worker/run/pace.h"
#include "worker/run/run_outputs.h"
#include "worker/run/run_saves.h"
#include "worker/run/train_step.h"
#include "worker/run/validation.h"

namespace ddprun::trainer {
namespace {

constexpr std::chrono::milliseconds kFileTimeout{600'000};
constexpr std::chrono::milliseconds kSlowRead{5'000};  // said after this

double seconds_since(TimePoint start) { return std::chrono::duration<double>(SteadyClock::now() - start).count(); }

class TrainLoop {
 public:
  TrainLoop(Run& run, Ranks& ranks, StopSignal& stop, Reporter& reporter)
      : config_(run.config),
        ranks_(ranks),
        model_(run.model),
        data_(run.data),
        state_(run.state),
        notes_(run.notes),
        stop_(stop),
        reporter_(reporter),
        outputs_(config_.output, ranks, state_),
        saves_(ranks, model_, state_, run.writer.get(), outputs_, !config_.output.indices.empty()),
        slow_read_(ranks.rank(), std::min(kSlowRead, config_.ddp.timeout / 2)),
        step_(config_, ranks, model_, data_, state_, stop, outputs_, slow_read_),
        validation_(config_, ranks, model_, data_, state_, stop, slow_read_),
        batch_(config_.data.batch_size) {}

  Result<int> run();

 private:
  void plan_length();
  Result<void> open_files();
  void say_start();
  Result<void> run_epoch(bool& stopped);
  Result<void> after_step(StepResult& result, double lr, double scale, TimePoint started);
  Result<void> save_if_due(bool asked);
  Result<void> end_epoch(bool& stopped);
  void say_already_done();
  Result<bool> validate(std::string_view when);
  Result<void> check_resources();
  Result<int> finish(bool stopped);
  bool at_end() const {
    return state_.epoch >= config_.train.epochs ||
           (config_.train.max_steps > 0 && state_.step >= config_.train.max_steps) || validation_.patience_is_over();
  }
  double learning_rate() const {
    const checkpoint::TrainState& at = state_;
    return config_.update.schedule.at(pace_->schedule_position(at.step, at.epoch, at.cursor));
  }
  // Of a training step; 0: not known.
  double count_flops() const {
    auto built = engine::build_model(config_.model, config_.loss, 1);
    return built ? 3 * engine::forward_flops(built->graph) : 0;
  }
  std::int64_t tokens_per_sample() const { return config_.model.name == "gpt2" ? config_.data.sequence_length : 0; }
  // While one rank reads or writes files the others wait for it much longer than for a gradient.
  std::chrono::milliseconds file_timeout() const {
    constexpr std::chrono::minutes kSpare{1};
    return std::max({kFileTimeout, config_.checkpoint.timeout + kSpare, config_.data.reading.timeout + kSpare});
  }

  TrainerConfig& config_;
  Ranks& ranks_;
  RunModel& model_;
  RunData& data_;
  checkpoint::TrainState& state_;
  const std::vector<std::string>& notes_;
  StopSignal& stop_;
  Reporter& reporter_;
  RunOutputs outputs_;
  RunSaves saves_;
  SlowRead slow_read_;
  TrainStep step_;
  Validation validation_;
  const std::int64_t batch_;
  std::int64_t steps_per_epoch_ = 0;
  std::optional<Pace> pace_;
  std::int64_t step_in_epoch_ = 0;
  GrowthWatch growth_;
  TimePoint window_start_{}, run_start_{};
  std::int64_t window_samples_ = 0, steps_done_ = 0;
  TimePoint epoch_start_{};
  std::int64_t epoch_samples_ = 0, epoch_steps_ = 0, epoch_skipped_ = 0;  // of this process
  double samples_per_s_ = 0;
  double flops_per_sample_ = 0;
};

void TrainLoop::plan_length() {
  const std::int64_t share = data_.sampler->samples_per_rank();
  steps_per_epoch_ = (share + step_.samples_per_rank() - 1) / step_.samples_per_rank();
  const RunBounds bounds{config_.train.epochs, config_.train.max_steps, config_.update.schedule.total_steps};
  const EpochShape here{step_.samples_per_rank() * ranks_.world_size(), steps_per_epoch_};
  pace_.emplace(bounds, here, EpochShape{state_.schedule_batch, state_.schedule_epoch});
  state_.schedule_batch = pace_->begun().batch;
  state_.schedule_epoch = pace_->begun().steps;
  config_.update.schedule.total_steps = pace_->schedule_total();
}

// All files that the run writes: what cannot be written is found before the first step.
Result<void> TrainLoop::open_files() {
  const LogConfig& log = config_.log;
  if (ranks_.is_root() && !log.file.empty()) {
    auto opened = reporter_.open_log(log.file);
    if (!opened && log.file_given) return std::move(opened).error().with_context("log.file");
    if (!opened) log_warning("no log file: {} (set log.file)", opened.error().message());
  }
  auto possible = validation_.check();
  if (!possible) return possible;
  return outputs_.open();
}

void TrainLoop::say_start() {
  if (ranks_.is_root()) {
    for (const std::string& warning : config_.warnings) log_warning("{}", warning);
    const RunFacts facts{.steps = pace_->steps_left(0, 0, 0),
                         .samples_per_rank = data_.sampler->samples_per_rank(),
                         .world_size = ranks_.world_size(),
                         .crosses_hosts = ranks_.communicator().crosses_hosts(),
                         .on_gpu = model_.device != nullptr};
    for (const std::string& warning : advice(config_, facts)) log_warning("{}", warning);
  }
  for (const std::string& note : notes_) reporter_.line(note);
  reporter_.line(fmt::format("model {}: {} parameters; {} samples; {} rank(s), {}; {}; batch {} x {} x accumulate {}",
                             config_.model.name, model_.store->trainable_count(), data_.train.dataset->size(),
                             ranks_.world_size(), ranks_.communicator().description(), model_.kernels->description(),
                             batch_, ranks_.world_size(), config_.train.accumulate));
  flops_per_sample_ = count_flops();
  if (flops_per_sample_ > 0) {
    reporter_.line(fmt::format("a sample takes {:.3g} GFLOP, forward and backward", flops_per_sample_ / 1e9));
  }
  const std::int64_t share = data_.sampler->samples_per_rank();
  if (batch_ > share) {
    reporter_.line(
        fmt::format("data.batch_size {} is more than the {} samples of a rank: an epoch is one step", batch_, share));
  }
}

Result<int> TrainLoop::run() {
  plan_length();
  auto ready = ranks_.check_on_all(open_files());
  if (!ready) return std::move(ready).error();
  ranks_.communicator().set_timeout(config_.ddp.timeout);
  say_start();
  stop_.arm();
  run_start_ = window_start_ = SteadyClock::now();
  bool stopped = false;
  // A save of the very last step leaves the epoch's end to be done.
  const bool at_last_end = state_.step > 0 && state_.epoch + 1 == config_.train.epochs &&
                           data_.sampler->indices(state_.epoch, state_.cursor).empty();
  if (at_end() || at_last_end) say_already_done();
  if (validation_.at_start() && !at_end()) {
    auto validated = validate("before the first step");
    if (!validated) return std::move(validated).error();
    stopped = !*validated;
  }
  while (!stopped && !at_end()) {
    auto done = run_epoch(stopped);
    if (!done) return std::move(done).error();
  }
  return finish(stopped);
}

// A finished run that is started again is no mistake: a job that was queued twice. But nobody shall wait for it.
void TrainLoop::say_already_done() {
  const std::string what =
      validation_.patience_is_over()
          ? fmt::format("{} validations without a gain have ended it (validation.patience)", state_.best.without_gain)
      : config_.train.max_steps == 0 || state_.step < config_.train.max_steps
          ? fmt::format("all {} epochs were done already", config_.train.epochs)
          : fmt::format("all {} steps were done already", config_.train.max_steps);
  reporter_.line(
      fmt::format("{} (step {} of {}): nothing is left to train. For more raise train.epochs or "
                  "train.max_steps; to begin anew choose another checkpoint.dir",
                  what, state_.step, config_.checkpoint.dir));
}

Result<void> TrainLoop::run_epoch(bool& stopped) {
  std::vector<std::int64_t> share = data_.sampler->indices(state_.epoch, state_.cursor);
  auto left = static_cast<std::int64_t>(share.size());
  auto equal = ddp::check_equal(ranks_.communicator(), "samples left in the epoch", left);
  if (!equal) return equal;
  const std::int64_t steps_left = (left + step_.samples_per_rank() - 1) / step_.samples_per_rank();
  step_in_epoch_ = std::max<std::int64_t>(0, steps_per_epoch_ - steps_left);
  auto begun = ranks_.check_on_all(data_.train.loader->begin_epoch(state_.epoch, std::move(share)));
  if (!begun) return begun;
  step_.begin_epoch();
  epoch_start_ = SteadyClock::now();
  epoch_samples_ = epoch_steps_ = epoch_skipped_ = 0;
  while (left > 0) {
    const TimePoint started = SteadyClock::now();
    const double lr = learning_rate();
    const double scale = model_.scaler.scale();
    auto result = step_.run(left, lr);
    if (!result) return std::move(result).error();
    stopped = result->stop;
    if (!result->made) return {};
    left -= std::min(left, step_.samples_per_rank());
    auto done = after_step(*result, lr, scale, started);
    if (!done) return done;
    stopped = result->stop;
    if (stopped || at_end()) break;
    if (config_.train.step_delay.count() > 0) std::this_thread::sleep_for(config_.train.step_delay);
  }
  return left == 0 && !stopped ? end_epoch(stopped) : Result<void>();
}

Result<void> TrainLoop::after_step(StepResult& result, double lr, double scale, TimePoint started) {
  ++step_in_epoch_;
  ++steps_done_;
  ++epoch_steps_;
  epoch_skipped_ += result.skipped ? 1 : 0;
  epoch_samples_ += result.samples;
  window_samples_ += result.samples;
  const double took = seconds_since(started);
  outputs_.after_step(StepMetrics{.step = state_.step,
                                  .epoch = state_.epoch + 1,
                                  .loss = result.loss,
                                  .lr = lr,
                                  .scale = scale,
                                  .skipped = result.skipped,
                                  .grad_norm = result.grad_norm,
                                  .samples_per_s = static_cast<double>(result.samples) / took,
                                  .tokens_per_s = static_cast<double>(result.samples * tokens_per_sample()) / took});
  if (result.skipped) {
    reporter_.line(fmt::format("step {}: skipped, not finite (loss scale {:.6g})", state_.step, scale));
  }
  ProgressState progress;
  progress.epoch = state_.epoch;
  progress.epochs = config_.train.epochs;
  progress.step = step_in_epoch_;
  progress.steps_in_epoch = steps_per_epoch_;
  progress.loss = result.loss;
  progress.lr = lr;
  const double per_step = seconds_since(run_start_) / static_cast<double>(steps_done_);
  progress.eta_s = per_step * static_cast<double>(pace_->steps_left(state_.step, state_.epoch, step_in_epoch_));
  const bool due = state_.step % config_.log.every_steps == 0;
  if (due || samples_per_s_ == 0) samples_per_s_ = static_cast<double>(window_samples_) / seconds_since(window_start_);
  progress.samples_per_s = samples_per_s_;
  progress.tokens_per_s = samples_per_s_ * static_cast<double>(tokens_per_sample());
  reporter_.progress(progress, due);
  if (due) {
    window_start_ = SteadyClock::now();
    window_samples_ = 0;
    outputs_.scalar("train/loss", state_.step, result.loss);
    outputs_.scalar("train/lr", state_.step, lr);
    outputs_.scalar("train/samples_per_s", state_.step, samples_per_s_);
    outputs_.scalar("train/grad_norm", state_.step, result.grad_norm);
    outputs_.scalar("train/gflops", state_.step, samples_per_s_ * flops_per_sample_ / 1e9);
    if (progress.tokens_per_s > 0) outputs_.scalar("train/tokens_per_s", state_.step, progress.tokens_per_s);
  }
  if (validation_.after_step() && !result.stop) {
    auto validated = validate(fmt::format("step {}", state_.step));
    if (!validated) return std::move(validated).error();
    result.stop = !*validated;
  }
  return save_if_due(result.save && !result.stop);
}

Result<void> TrainLoop::save_if_due(bool asked) {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (asked && checkpoint.dir.empty()) {
    reporter_.line(
        fmt::format("step {}: SIGUSR2 asks for a checkpoint, but there is no checkpoint.dir: nothing was "
                    "saved, training goes on",
                    state_.step));
    return {};
  }
  if (asked) reporter_.line(fmt::format("step {}: saving (SIGUSR2), training goes on", state_.step));
  const bool due = !checkpoint.dir.empty() && checkpoint.every_steps > 0 && state_.step % checkpoint.every_steps == 0 &&
                   saves_.started_at() != state_.step;  // as the best one
  if (due || asked) {
    // Rank 0 waits here for a disk that is slower than the saves: the others wait with it, longer than for a gradient.
    ranks_.communicator().set_timeout(file_timeout());
    auto done = ranks_.check_on_all(saves_.start());
    ranks_.communicator().set_timeout(config_.ddp.timeout);
    return done;
  }
  return {};
}

Result<void> TrainLoop::end_epoch(bool& stopped) {
  checkpoint::TrainState& state = state_;
  auto equal = ddp::check_equal(ranks_.communicator(), "checksum of the parameters", parameter_checksum(*model_.store));
  if (!equal) return equal;
  const double mean = state.epoch_loss_count > 0 ? state.epoch_loss_sum / static_cast<double>(state.epoch_loss_count)
                                                 : std::numeric_limits<double>::quiet_NaN();
  const std::int64_t epoch = state.epoch + 1;
  const double trained_s = seconds_since(epoch_start_);
  if (validation_.after_epoch()) {
    auto validated = validate("");
    if (!validated) return std::move(validated).error();
    stopped = !*validated;
    // The epoch ends when this is done: a resumed run begins with it.
    if (stopped) return {};
  }
  std::string text = fmt::format("epoch {}/{} done: mean loss {}", epoch, config_.train.epochs, format_loss(mean));
  if (epoch_steps_ > 0 && epoch_skipped_ == epoch_steps_) text += ", no step taken (all were skipped)";
  if (validation_.is_current()) text += ", " + words_of(validation_.figures());
  // None here when the run before ended between the last step and the end of this epoch.
  if (epoch_steps_ > 0) {
    const double speed = static_cast<double>(epoch_samples_) / trained_s;
    text += fmt::format(", {} samples/s", format_speed(speed));
    if (flops_per_sample_ * speed >= 1e9) text += fmt::format(", {:.3g} GFLOP/s", flops_per_sample_ * speed / 1e9);
  }
  text += fmt::format(", {} elapsed", format_duration(seconds_since(run_start_)));
  reporter_.line(text);
  outputs_.scalar("epoch/loss", state.step, mean);
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

// The whole validation set, its results to all who want them, and the best checkpoint. when: the head of a line of its
// own; "": the caller says the figures. false: a stop signal came before its end, on some rank.
Result<bool> TrainLoop::validate(std::string_view when) {
  auto whole = validation_.run(file_timeout());
  if (!whole || !*whole) return whole;
  if (!when.empty()) reporter_.line(fmt::format("{}: {}", when, words_of(validation_.figures())));
  if (validation_.is_news()) outputs_.add_metrics(validation_.json_line());
  for (const Figure& figure : validation_.figures()) {
    outputs_.scalar("validation/" + figure.name, state_.step, figure.value);
  }
  // The speed that is shown is training's.
  window_start_ = SteadyClock::now();
  window_samples_ = 0;
  ranks_.communicator().set_timeout(file_timeout());
  auto done = ranks_.check_on_all(ranks_.is_root() ? validation_.write_confusion() : Result<void>());
  const bool save = validation_.is_best() && !config_.checkpoint.best.empty() && !config_.checkpoint.dir.empty();
  if (done && save) done = ranks_.check_on_all(saves_.start());
  ranks_.communicator().set_timeout(config_.ddp.timeout);
  if (!done) return std::move(done).error();
  return true;
}

// What is held must not grow from epoch to epoch. The first epoch fills caches and makes plans: it is the measure.
Result<void> TrainLoop::check_resources() {
  if (!config_.log.memory_check) return {};
  auto use = measure_resources();
  if (!use) {
    log_warning("{}", use.error().message());
    return {};
  }
  if (model_.device != nullptr) use->device_bytes = static_cast<std::int64_t>(model_.device->allocated_bytes());
  use->arena_bytes = static_cast<std::int64_t>(model_.store->parameter_bytes() + model_.store->gradient_bytes() +
                                               model_.plans->activation_bytes());
  use->works = static_cast<std::int64_t>(ranks_.communicator().live_works());
  use->dropped = static_cast<std::int64_t>(ranks_.communicator().dropped_handles());
  std::string text = describe(*use);
  const std::string grown = growth_.next(*use);
  if (!grown.empty()) text += "; GREW in two epochs: " + grown;
  reporter_.line(text);
  return {};
}

Result<int> TrainLoop::finish(bool stopped) {
  if (!stopped && validation_.wanted() && !validation_.is_current()) {
    auto validated = validate("");
    if (!validated) return std::move(validated).error();
    stopped = !*validated;
  }
  ranks_.communicator().set_timeout(file_timeout());
  Result<void> mine;
  if (!config_.checkpoint.dir.empty()) {
    // The periodic save of this very step may still be under way.
    mine = saves_.started_at() != state_.step || stopped ? saves_.last() : saves_.finish();
  }
  if (mine && !stopped && ranks_.is_root()) mine = outputs_.write_params(*model_.store);
  if (mine) mine = model_.kernels->status();
  auto all = ranks_.check_on_all(std::move(mine));
  if (!all) return std::move(all).error();
  stop_.disarm();
  if (stopped) {
    if (config_.checkpoint.dir.empty()) {
      reporter_.line(
          fmt::format("stopped by a signal after step {}; no checkpoint.dir, nothing was saved: all {} steps "
                      "are lost",
                      state_.step, state_.step));
      // SIGUSR1 asked for "save and end": a plain end is what is left of it.
      return exit_code::kSignalBase + (stop_.requested() == SIGINT ? SIGINT : SIGTERM);
    }
    reporter_.line(fmt::format("stopped by a signal after step {}; state saved in {}: start again to go on",
                               state_.step, config_.checkpoint.dir));
    return exit_code::kResumeMe;
  }
  if (state_.step > 0 && state_.optimizer_steps == 0) {
    const std::string advice =
        config_.precision.scale_loss
            ? fmt::format(
                  "The loss scale fell to {:.6g} and more steps may reach one that fits; a lower "
                  "precision.init_scale gets there sooner",
                  model_.scaler.scale())
            : std::string("Lower optimizer.lr or look at the data; train.on_nan: stop names the rank");
    return ranks_.fail_everywhere(
        fmt::format("nothing was trained: all {} steps were skipped, since loss or gradient was not "
                    "finite. {}",
                    state_.step, advice));
  }
  reporter_.line(fmt::format("finished after step {} in {}", state_.step, format_duration(seconds_since(run_start_))));
  if (validation_.patience_is_over()) {
    reporter_.line(
        fmt::format("ended early: {} validations brought no gain (validation.patience)", state_.best.without_gain));
  }
  for (const Figure& figure : validation_.figures()) {
    const bool six_digits = figure.name == "loss" && validation_.figures().size() == 1 && std::isfinite(figure.value);
    reporter_.line(six_digits ? fmt::format("validation loss {:.6f}", figure.value) : words_of({figure}));
  }
  if (!config_.checkpoint.best.empty() && state_.best.step >= 0) {
    reporter_.line(fmt::format("best {}: step {}, {}", config_.checkpoint.best, state_.best.step,
                               words_of({{config_.checkpoint.best, state_.best.value}})));
  }
  return exit_code::kOk;
}

}  // namespace

static int run_training(const TrainerConfig& config, const WorkerEnv& env, StopSignal& stop) {
  const auto fail = [&env](const Error& error, bool is_said) {
    if (!is_said) say_error(env, error);
    return exit_code_of(error);
  };
  auto ranks = connect_ranks(config.ddp, env, stop);
  if (!ranks) return fail(ranks.error(), false);
  auto opened = open_run(config, **ranks);
  if (!opened) return fail(opened.error(), (*ranks)->error_is_said());
  Reporter reporter(/*quiet=*/!(*ranks)->is_root());
  TrainLoop loop(*opened, **ranks, stop, reporter);
  auto code = loop.run();
  if (!code) {
    if (opened->model.device != nullptr) opened->model.device->be_brief();
    return fail(code.error(), (*ranks)->error_is_said());
  }
  return *code;
}

int train(const TrainerConfig& config, const WorkerEnv& env, StopSignal& stop) {
  try {
    return run_training(config, env, stop);
  } catch (const std::bad_alloc&) {
    const Error error(Errc::system, "no memory left: " + memory_advice());
    say_error(env, error);
    return exit_code_of(error);
  }
}

}  // namespace ddprun::trainer
