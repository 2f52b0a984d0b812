#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/worker_env.h"
#include "worker/checkpoint/writer.h"
#include "worker/comm/communicator.h"
#include "worker/config/config.h"
#include "worker/data/distributed_sampler.h"
#include "worker/data/loader.h"
#include "worker/ddp/reducer.h"
#include "worker/kernels/kernels.h"
#include "worker/optim/optimizer.h"
#include "worker/run/plans.h"
#include "worker/run/stop_signal.h"

namespace ddprun::cuda {
class DeviceContext;
}

namespace ddprun::trainer {

// Until the first step: one rank may read files while the others wait for it, a little longer than it may take, so that
// they hear its reason.
constexpr std::chrono::seconds kSetupTimeout{600};
constexpr std::chrono::seconds kSetupSpare{60};

// All that one rank's run is made of, in the order in which it is made and given up.
struct Session {
  TrainerConfig config;
  WorkerEnv env;
  std::unique_ptr<comm::Communicator> communicator;
  cuda::DeviceContext* device = nullptr;  // null on the CPU; lives as long as the process
  std::unique_ptr<engine::Kernels> kernels;
  std::shared_ptr<const data::Dataset> train_data, validation_data;
  std::string train_fingerprint, validation_fingerprint;
  std::unique_ptr<engine::ParameterStore> store;
  std::unique_ptr<Plans> plans;
  std::unique_ptr<ddp::Reducer> reducer;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<data::Loader> train_loader, validation_loader;
  std::unique_ptr<data::DistributedSampler> sampler;
  std::shared_ptr<const checkpoint::CheckpointDirectory> directory;  // rank 0, if checkpoint.dir is set
  std::unique_ptr<checkpoint::CheckpointWriter> writer;              // the same
  checkpoint::TrainState state;
  optim::GradScaler scaler;
  bool resumed = false;
  std::vector<std::int64_t> launchers;  // of all ranks: gather_launchers()
  std::vector<std::string> notes;       // what rank 0 has to say about the start

  const StopSignal* stop = nullptr;
  bool error_is_said = false;  // the error that ends this run has been told to the user, here or by another rank

  int rank() const { return communicator->rank(); }
  int world_size() const { return communicator->world_size(); }
  bool is_root() const { return rank() == 0; }
  // Every rank's part of a phase is done: see agree(). On failure the rank that failed says so at once, and the others
  // stay until the launcher, which sees that one end, stops them: it shall see the cause before its consequences.
  Result<void> together(Result<void> mine);
  // An error that every rank meets at once (gradients are equal): rank 0 says it. Collective.
  Error fail_everywhere(const std::string& message);
};

// Collective: data, model, initial or resumed state, equal on all ranks afterwards.
// error_is_said: the error has been told to the user already.
Result<std::unique_ptr<Session>> open_session(const TrainerConfig& config, const WorkerEnv& env, const StopSignal& stop,
                                              bool& error_is_said);

// Rank 0's buffers (running statistics) to all. Collective.
Result<void> broadcast_buffers(Session& session);
// CRC-32C over all trainable parameters, to compare ranks.
std::uint32_t parameter_checksum(const Session& session);
// Rank 0: copies parameters, buffers and optimizer state, and starts the save of `session.state`. Errors: the device's,
// whose memory cannot be trusted then, and timed_out when the save before hangs; nothing is saved.
Result<void> start_save(Session& session);

}  // namespace ddprun::trainer
