#include "worker/run/run_data.h"

#include <fmt/format.h>

#include <utility>

#include "worker/base/within.h"
#include "worker/run/fingerprint.h"
#include "worker/run/open_data.h"

namespace ddprun::trainer {
namespace {

data::LoaderOptions loader_options(const TrainerConfig& config) {
  data::LoaderOptions options;
  options.batch_size = config.data.batch_size;
  options.num_workers = config.data.reading.num_workers;
  options.prefetch_factor = config.data.reading.prefetch_factor;
  options.persistent_workers = config.data.reading.persistent_workers;
  options.seed = config.train.seed;
  options.timeout = config.data.reading.timeout;
  return options;
}

Result<void> every_rank_has_samples(const DataConfig& data, const data::DistributedSampler& sampler,
                                    const data::SamplerOptions& sampling) {
  if (sampler.samples_per_rank() > 0) return {};
  std::string message = fmt::format(
      "{} training samples leave nothing for each of {} ranks with data.drop_last; use "
      "fewer ranks",
      sampling.samples, sampling.world_size);
  if (data.drop_short_batch) {
    message = fmt::format(
        "{} training samples on {} ranks make no full batch of {}, and data.drop_short_batch drops "
        "what is shorter; use fewer ranks, a smaller data.batch_size or drop_short_batch: false",
        sampling.samples, sampling.world_size, data.batch_size);
  }
  return Error(Errc::invalid_argument, message);
}

}  // namespace

Result<RunData> open_run_data(TrainerConfig& config, int rank, int world_size, std::chrono::milliseconds limit) {
  struct Opened {
    TrainerConfig config;
    OpenedData data;
    std::string train, validation;  // fingerprints: reading samples may take as long as opening does
  };
  const auto open = [config]() mutable -> Result<Opened> {
    auto data = open_data(config);
    if (!data) return std::move(data).error();
    const std::uint64_t seed = config.train.seed;
    std::string train = fingerprint(*data->train, config.data.format, seed), validation = "none";
    if (data->validation != nullptr) validation = fingerprint(*data->validation, config.data.format, seed);
    return Opened{std::move(config), std::move(*data), std::move(train), std::move(validation)};
  };
  auto opened = within<Opened>(limit, "data.train or data.validation", open);
  if (!opened) return std::move(opened).error();
  config = std::move(opened->config);
  RunData data;
  data.train.dataset = std::move(opened->data.train);
  data.train.fingerprint = std::move(opened->train);
  data.validation.dataset = std::move(opened->data.validation);
  data.validation.fingerprint = std::move(opened->validation);
  data::SamplerOptions sampling;
  sampling.samples = data.train.dataset->size();
  sampling.world_size = world_size;
  sampling.rank = rank;
  sampling.shuffle = config.data.shuffle;
  sampling.drop_last = config.data.drop_last;
  sampling.whole_batches = config.data.drop_short_batch ? config.data.batch_size : 0;
  sampling.seed = config.train.seed;
  data.sampler = std::make_unique<data::DistributedSampler>(sampling);
  auto enough = every_rank_has_samples(config.data, *data.sampler, sampling);
  if (!enough) return std::move(enough).error();
  return data;
}

Result<void> start_loaders(const TrainerConfig& config, RunData& data) {
  for (DataPart* part : {&data.train, &data.validation}) {
    if (part->dataset == nullptr) continue;
    auto loader = data::Loader::create(part->dataset, loader_options(config));
    if (!loader) return std::move(loader).error();
    part->loader = std::move(*loader);
  }
  return {};
}

}  // namespace ddprun::trainer
