#pragma once

#include <memory>
#include <string>

#include "common/result.h"
#include "common/worker_env.h"
#include "worker/comm/communicator.h"
#include "worker/config/config.h"
#include "worker/kernels/device.h"
#include "worker/ranks/stop_signal.h"

namespace ddprun::trainer {

// All ranks of the run, seen from this one: how they talk, and how they end together.
class Ranks {
 public:
  // stop is kept.
  Ranks(std::unique_ptr<comm::Communicator> communicator, const WorkerEnv& env, const StopSignal& stop)
      : communicator_(std::move(communicator)), env_(env), stop_(stop) {}

  comm::Communicator& communicator() const { return *communicator_; }
  int rank() const { return communicator_->rank(); }
  int world_size() const { return communicator_->world_size(); }
  bool is_root() const { return rank() == 0; }
  const WorkerEnv& env() const { return env_; }

  // A device that failed is the cause of what else goes wrong on this rank: from now on it is asked before any other
  // error is believed. device: kept until the last check_on_all().
  void suspect(const engine::Device& device) { device_ = &device; }

  // Every rank's part of a phase is done: see agree(). On failure the rank that failed says so at once, and the others
  // stay until the launcher, which sees that one end, stops them: it shall see the cause before its consequences.
  // Collective.
  Result<void> check_on_all(Result<void> mine);
  // An error that every rank meets at once (gradients are equal): rank 0 says it. Collective.
  Error fail_everywhere(const std::string& message);
  // The error that ends this run has been told to the user, here or by another rank.
  bool error_is_said() const { return error_is_said_; }

 private:
  std::unique_ptr<comm::Communicator> communicator_;
  WorkerEnv env_;
  const StopSignal& stop_;
  const engine::Device* device_ = nullptr;
  bool error_is_said_ = false;
};

// Errors: as comm::make_communicator().
Result<std::unique_ptr<Ranks>> connect_ranks(const DdpConfig& config, const WorkerEnv& env, const StopSignal& stop);

}  // namespace ddprun::trainer
