#include "worker/run/advice.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

namespace ddprun::trainer {
namespace {

// Height and width of what a ResNet's last stage makes.
std::int64_t last_extent(const engine::ModelConfig& model) {
  std::int64_t size = model.image_size;
  const int halvings = model.stem == engine::Stem::imagenet ? 5 : 3;
  for (int i = 0; i < halvings; ++i) size = (size - 1) / 2 + 1;
  return size;
}

// Batch norm of one value is 0 whatever the input: torch refuses to train so.
std::string one_value_norms(const TrainerConfig& config, const RunFacts& facts) {
  const bool resnet = config.model.name.rfind("resnet", 0) == 0;
  const bool mlp = config.model.name == "mlp" && config.model.norm == engine::Norm::batch;
  if (!mlp && (!resnet || last_extent(config.model) > 1)) return "";
  const std::int64_t batch = std::min(config.data.batch_size, facts.samples_per_rank);
  const std::int64_t tail = config.data.drop_short_batch ? 0 : facts.samples_per_rank % batch;
  if (batch != 1 && tail != 1) return "";
  return fmt::format(
      "data.batch_size: {} is 1 sample of 1x1 features: batch norm of one value gives 0 whatever the input. Use {}",
      batch == 1 ? "a batch" : "an epoch's last batch",
      batch == 1 ? "a larger data.batch_size" : "data.drop_short_batch: true or another data.batch_size");
}

}  // namespace

std::vector<std::string> advice(const TrainerConfig& config, const RunFacts& facts) {
  std::vector<std::string> all;
  const optim::Schedule& schedule = config.update.schedule;
  if (schedule.lr == 0) all.push_back("optimizer.lr is 0: nothing will be learnt");
  if (schedule.warmup_steps > 0 && facts.steps > 0 && schedule.warmup_steps >= facts.steps) {
    all.push_back(
        fmt::format("schedule.warmup_steps {} is not below the run's {} steps: the rate never gets to "
                    "optimizer.lr {}",
                    schedule.warmup_steps, facts.steps, schedule.lr));
  }
  if (config.precision.dtype != engine::DType::f32 && !facts.on_gpu) {
    all.push_back(
        fmt::format("precision.dtype {} on a CPU shows the numbers a GPU would give and is slower than fp32, "
                    "which it is computed in; for speed use fp32",
                    config.precision.dtype == engine::DType::bf16 ? "bf16" : "fp16"));
  }
  if (const std::string text = one_value_norms(config, facts); !text.empty()) all.push_back(text);
  const std::string& compression = config.ddp.reducer.compression;
  if (compression != "none" && facts.world_size == 1) {
    all.push_back("ddp.compression " + compression + " has no effect: there is one rank, which exchanges nothing");
  } else if (compression != "none" && !facts.crosses_hosts && !config.ddp.reducer.force_compression) {
    all.push_back("ddp.compression " + compression +
                  " has no effect: all ranks are on one host, where it costs more than it saves "
                  "(ddp.force_compression: true compresses all the same)");
  }
  return all;
}

std::string memory_advice() {
  rlimit limit = {};
  std::string text;
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text = fmt::format("this process may use {:.0f} MB of address space (ulimit -v {}): raise or lift that limit, or ",
                       static_cast<double>(limit.rlim_cur) / 1e6, limit.rlim_cur / 1024);
  }
  return text +
         "use a smaller data.batch_size (with train.accumulate the step's batch stays the same), "
         "train.activation_checkpointing: true, fewer ranks on this host or a smaller model";
}

}  // namespace ddprun::trainer
