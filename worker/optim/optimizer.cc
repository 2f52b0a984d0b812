#include "worker/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "worker/kernels/kernels.h"

namespace ddprun::optim {
namespace {

using engine::Parameter;
using engine::UpdateChunk;

class FlatOptimizer final : public Optimizer {
 public:
  FlatOptimizer(const OptimizerConfig& config, engine::ParameterStore& store)
      : config_(config),
        store_(store),
        device_(store.kernels()),
        updates_(store.kernels()),
        chunks_(store.chunks().begin(), store.chunks().end()) {}

  ~FlatOptimizer() override {
    if (arena_ != nullptr) device_.release(arena_);
    if (swap_space_ != nullptr) device_.release(swap_space_);
  }

  // false: no memory.
  bool allocate() {
    const int states = config_.kind != OptimizerKind::sgd ? 2 : config_.momentum != 0 ? 1 : 0;
    const int arenas = states + (config_.average > 0 ? 1 : 0);
    std::size_t bytes = 0;
    for (const Parameter& p : store_.parameters()) {
      if (p.trainable) bytes += padded(p);
    }
    if (arenas > 0) {
      arena_ = static_cast<char*>(device_.allocate(bytes * static_cast<std::size_t>(arenas)));
      if (arena_ == nullptr) return false;
    }
    std::size_t chunk = 0, offset = 0;
    for (const Parameter& p : store_.parameters()) {
      if (!p.trainable) continue;
      const bool decays = !config_.decay_matrices_only || p.shape.rank() >= 2;
      for (std::size_t begin = 0; begin < p.count(); ++chunk) {
        UpdateChunk& c = chunks_[chunk];
        c.decay = decays ? config_.weight_decay : 0.0;
        const std::size_t at = offset + begin * engine::size_of(p.dtype);
        if (states > 0) c.state1 = arena_ + at;
        if (states > 1) c.state2 = arena_ + bytes + at;
        if (arenas > states) {
          UpdateChunk average;
          average.parameter = arena_ + bytes * static_cast<std::size_t>(states) + at;
          average.gradient = c.parameter;
          average.count = c.count;
          average.decay = 1;
          averages_.push_back(average);
        }
        begin += static_cast<std::size_t>(c.count);
      }
      if (config_.kind != OptimizerKind::sgd) {
        state_.push_back({p.name, "exp_avg", p.shape, p.dtype, arena_ + offset});
        state_.push_back({p.name, "exp_avg_sq", p.shape, p.dtype, arena_ + bytes + offset});
      } else if (states == 1) {
        state_.push_back({p.name, "momentum_buffer", p.shape, p.dtype, arena_ + offset});
      }
      if (arenas > states) {
        state_.push_back({p.name, "ema", p.shape, p.dtype, arena_ + bytes * static_cast<std::size_t>(states) + offset});
      }
      offset += padded(p);
    }
    return true;
  }

  void step(double lr, const GradientFactors& factors) override {
    update(lr, factors);
    // average -= (1 - decay) * (average - parameter), which is what plain SGD does with these "gradients". torch's
    // AveragedModel begins with a copy, too.
    if (steps_ == 1) {
      for (const UpdateChunk& c : averages_) device_.copy(c.parameter, c.gradient, chunk_bytes(c));
    } else if (!averages_.empty()) {
      updates_.sgd(averages_, {.lr = 1 - config_.average, .unscale = -1});
    }
  }

  void swap_average() override {
    if (averages_.empty() || steps_ == 0) return;
    if (swap_space_ == nullptr) swap_space_ = device_.allocate(chunk_bytes(averages_.front(), /*largest=*/true));
    CHECK(swap_space_ != nullptr, "no memory to exchange averaged parameters");
    for (const UpdateChunk& c : averages_) {
      device_.copy(swap_space_, c.gradient, chunk_bytes(c));
      device_.copy(c.gradient, c.parameter, chunk_bytes(c));
      device_.copy(c.parameter, swap_space_, chunk_bytes(c));
    }
    store_.refresh_mirrors();
  }

  void update(double lr, const GradientFactors& factors) {
    ++steps_;
    if (config_.kind == OptimizerKind::sgd) {
      updates_.sgd(chunks_, {.lr = lr,
                             .momentum = config_.momentum,
                             .dampening = config_.dampening,
                             .nesterov = config_.nesterov,
                             .first = steps_ == 1,
                             .unscale = factors.unscale,
                             .clip = factors.clip});
      return;
    }
    const double t = static_cast<double>(steps_);
    updates_.adamw(chunks_, {.lr = lr,
                             .beta1 = config_.beta1,
                             .beta2 = config_.beta2,
                             .eps = config_.eps,
                             .correction1 = 1 - std::pow(config_.beta1, t),
                             .correction2 = 1 - std::pow(config_.beta2, t),
                             .decoupled = config_.kind == OptimizerKind::adamw,
                             .unscale = factors.unscale,
                             .clip = factors.clip});
  }

  std::int64_t steps() const override { return steps_; }
  void set_steps(std::int64_t steps) override { steps_ = steps; }
  std::vector<StateTensor> state() override { return state_; }
  void read(const StateTensor& tensor, void* host) const override { device_.copy_out(host, tensor.data, size(tensor)); }
  void write(const StateTensor& tensor, const void* host) override { device_.copy_in(tensor.data, host, size(tensor)); }

 private:
  std::size_t chunk_bytes(const UpdateChunk& chunk, bool largest = false) const {
    std::int64_t count = chunk.count;
    for (const UpdateChunk& c : averages_) count = largest ? std::max(count, c.count) : count;
    return static_cast<std::size_t>(count) * engine::size_of(device_.master_type());
  }
  static std::size_t padded(const Parameter& p) { return (p.size_bytes() + 63) / 64 * 64; }
  static std::size_t size(const StateTensor& t) {
    return static_cast<std::size_t>(t.shape.count()) * engine::size_of(t.dtype);
  }

  OptimizerConfig config_;
  engine::ParameterStore& store_;
  engine::Device& device_;
  engine::UpdateKernels& updates_;
  std::vector<UpdateChunk> chunks_;
  std::vector<UpdateChunk> averages_;  // parameter: the average; gradient: the parameter
  void* swap_space_ = nullptr;
  std::vector<StateTensor> state_;
  char* arena_ = nullptr;
  std::int64_t steps_ = 0;
};

Result<void> check(const OptimizerConfig& c) {
  auto bad = [](const char* what, double value) {
    return Error(Errc::invalid_argument, fmt::format("optimizer: {} is {}", what, value));
  };
  if (c.momentum < 0) return bad("momentum", c.momentum);
  if (c.weight_decay < 0) return bad("weight_decay", c.weight_decay);
  if (c.nesterov && (c.momentum <= 0 || c.dampening != 0)) {
    return Error(Errc::invalid_argument, "optimizer: nesterov needs a momentum and no dampening");
  }
  if (!(c.beta1 >= 0 && c.beta1 < 1)) return bad("betas[0]", c.beta1);
  if (!(c.beta2 >= 0 && c.beta2 < 1)) return bad("betas[1]", c.beta2);
  if (!(c.eps >= 0)) return bad("eps", c.eps);
  if (!(c.average >= 0 && c.average < 1)) return bad("ema", c.average);
  return {};
}

}  // namespace

Result<std::unique_ptr<Optimizer>> Optimizer::create(const OptimizerConfig& config, engine::ParameterStore& store) {
  if (auto good = check(config); !good) return std::move(good).error();
  auto optimizer = std::make_unique<FlatOptimizer>(config, store);
  if (!optimizer->allocate()) return Error(Errc::system, "no memory for optimizer state");
  return std::unique_ptr<Optimizer>(std::move(optimizer));
}

}  // namespace ddprun::optim
