#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/config/config.h"

namespace ddprun::trainer {

// What is known of a run when it starts, beside its configuration.
struct RunFacts {
  std::int64_t steps = 0;             // of the whole run
  std::int64_t samples_per_rank = 0;  // in an epoch
  int world_size = 1;
  bool crosses_hosts = false;
  bool on_gpu = false;
};

// Settings that are legal and hardly meant: one sentence each, beginning with the key.
std::vector<std::string> advice(const TrainerConfig& config, const RunFacts& facts);

// What helps when memory is out, with the limits that this process has.
std::string memory_advice();

}  // namespace ddprun::trainer
