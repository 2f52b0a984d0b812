#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/data/dataset.h"
#include "worker/ddp/reducer.h"
#include "worker/models/models.h"
#include "worker/optim/grad_scaler.h"
#include "worker/optim/optimizer.h"
#include "worker/optim/schedule.h"
#include "worker/tensor/shape.h"

// The trainer's configuration, checked: every key of the YAML file has its place here.
namespace ddprun::trainer {

// How a rank's threads read: keys of `data`.
struct ReadingConfig {
  int num_workers = 2;
  int prefetch_factor = 2;
  bool persistent_workers = true;
  bool pin_memory = true;  // false is refused on a GPU: DeviceContext::upload() goes through page-locked memory
  std::chrono::milliseconds timeout{300'000};  // read_timeout_s
};

// What becomes of a sample: keys of `data`.
struct TransformConfig {
  std::vector<double> mean, std;
  bool crop = false, flip = false;
  std::int64_t image_size = 224;
};

// Which columns of a table are what: names of its heading, or numbers from 1.
struct CsvConfig {
  std::string target;                // empty: the last
  std::vector<std::string> columns;  // that are inputs; empty: all but the target
};

struct DataConfig {
  std::string format;
  data::DataPaths train, validation;  // validation empty: no evaluation, unless there is a share
  double validation_share = 0;        // of the training samples, held back
  CsvConfig csv;
  bool has_validation() const { return !validation.empty() || validation_share > 0; }
  std::int64_t batch_size = 64;  // per rank and micro-batch
  bool shuffle = true;
  bool drop_last = false;         // the sampler's tail: torch's DistributedSampler(drop_last=True)
  bool drop_short_batch = false;  // the last batch if it is short: torch's DataLoader(drop_last=True)
  ReadingConfig reading;
  TransformConfig transform;
  std::int64_t sequence_length = 1024;
  std::int64_t samples = 1024;             // synthetic
  std::vector<std::int64_t> sample_shape;  // synthetic; empty: what the model takes
};

enum class OnNan : std::uint8_t { stop, skip };

struct ValidationConfig {
  std::int64_t every_steps = 0;  // 0: after each epoch
  bool at_start = false;
  std::int64_t patience = 0;  // validations without a gain after which the run ends; 0: it does not
  double min_delta = 0;       // less is no gain
  std::string confusion;      // folder; empty: not written
};

struct TrainConfig {
  std::int64_t epochs = 5;
  std::int64_t max_steps = 0;  // 0: no limit
  std::uint64_t seed = 0;
  std::int64_t accumulate = 1;
  bool activation_checkpointing = false;
  bool deterministic = true;  // changes nothing: all kernels are, for the same number of ranks and threads
  OnNan on_nan = OnNan::stop;
  std::int64_t memory_limit_mb = 0;  // 0: none
  std::chrono::milliseconds step_delay{0};
  std::string weights;              // model.weights: a safetensors file of initial ones; empty: from the seed
  std::vector<std::string> frozen;  // glob patterns of parameter names
};

enum class SyncBuffers : std::uint8_t { eval, step };

struct DdpConfig {
  ddp::ReducerOptions reducer;
  SyncBuffers sync_buffers = SyncBuffers::eval;
  std::string backend = "auto";
  std::chrono::milliseconds timeout{30'000};
  std::chrono::milliseconds connect_timeout{30'000};  // until the ranks have found each other
};

struct PrecisionConfig {
  engine::DType dtype = engine::DType::f32;
  bool tf32 = false;        // GPUs, fp32: products on tensor cores with 10-bit mantissas
  bool scale_loss = false;  // `auto` is resolved: with fp16 only
  optim::GradScaler::State scaler;
};

struct CheckpointConfig {
  std::string dir;  // empty: none are written
  std::int64_t every_steps = 100;
  std::int64_t keep = 3;
  std::string best;                            // loss, perplexity, accuracy or top5; empty: none is kept for it
  std::string resume = "auto";                 // auto | none | a path
  std::chrono::milliseconds timeout{600'000};  // of one save
};

struct LogConfig {
  std::string file = "train.log";
  bool file_given = false;  // asked for: then it must be writable
  std::int64_t every_steps = 10;
  bool memory_check = true;
};

struct OutputConfig {  // empty: not written
  std::string metrics, params, indices, tensorboard;
};

// How gradients become new parameters: keys of `optimizer` and `schedule`.
struct UpdateConfig {
  optim::OptimizerConfig optimizer;
  double clip_grad_norm = 0;  // 0: no clipping
  optim::Schedule schedule;   // total_steps 0: follows from the run's length
};

struct TrainerConfig {
  engine::ModelConfig model;
  bool outputs_given = false;  // model.outputs stands in the file; else it follows from the data
  DataConfig data;
  engine::LossConfig loss;
  UpdateConfig update;
  TrainConfig train;
  ValidationConfig validation;
  DdpConfig ddp;
  PrecisionConfig precision;
  CheckpointConfig checkpoint;
  LogConfig log;
  OutputConfig output;
  // Keys that are given and have no effect here, with file and line; after open_data() also what it left out.
  std::vector<std::string> warnings;
  std::map<std::string, std::string> effective;  // every key that has a value, given or by default
};

// Every key of the file ("data.batch_size") with its default as one writes it; "" where there is none.
std::map<std::string, std::string> known_config_keys();

// Reads `path`, then `overrides` ("data.batch_size=32") in order. Errors: one sentence with file:line and key.
Result<TrainerConfig> load_config(const std::string& path, const std::vector<std::string>& overrides);
Result<TrainerConfig> parse_config(const std::string& text, const std::string& name_for_errors,
                                   const std::vector<std::string>& overrides);

}  // namespace ddprun::trainer
