#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/result.h"
#include "worker/config/config.h"
#include "worker/ddp/reducer.h"
#include "worker/engine/parameter_store.h"
#include "worker/kernels/kernels.h"
#include "worker/optim/grad_scaler.h"
#include "worker/optim/optimizer.h"
#include "worker/ranks/ranks.h"
#include "worker/run/plans.h"

namespace ddprun::cuda {
class DeviceContext;
}

namespace ddprun::trainer {

// What is trained, on this rank's device: in the order in which it is made and given up.
struct RunModel {
  cuda::DeviceContext* device = nullptr;  // null on the CPU; lives as long as the process
  std::string device_versions;            // of its libraries; empty on the CPU
  std::unique_ptr<engine::Kernels> kernels;
  std::unique_ptr<engine::ParameterStore> store;
  std::unique_ptr<Plans> plans;
  std::unique_ptr<ddp::Reducer> reducer;  // owns the gradients' memory
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::GradScaler scaler;
};

// Device, parameters with their initial values, and plans. config: the reducer's cast on a GPU is put in. read_limit:
// how long the file of model.weights may take, which rank 0 reads. No collective inside.
Result<void> open_model(TrainerConfig& config, Ranks& ranks, std::chrono::milliseconds read_limit, RunModel& model);
// Reducer and optimizer; batch: samples of the first micro-batch. Collective.
Result<void> connect_model(const TrainerConfig& config, Ranks& ranks, std::int64_t batch, RunModel& model);

// Rank 0's parameters and buffers to all, and the optimizer's state if it has some already. Collective.
Result<void> broadcast_model(const Ranks& ranks, const RunModel& model, bool with_optimizer);
// Rank 0's buffers (running statistics) to all. Collective.
Result<void> broadcast_buffers(const Ranks& ranks, const RunModel& model);
// CRC-32C over all trainable parameters, to compare ranks.
std::uint32_t parameter_checksum(const engine::ParameterStore& store);

}  // namespace ddprun::trainer
