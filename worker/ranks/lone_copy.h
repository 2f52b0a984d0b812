#pragma once

#include "common/options.h"
#include "common/result.h"

namespace ddprun::trainer {

// A trainer without a launcher is a world of one. Where srun or mpirun started several copies of it, each would train
// by itself and overwrite what the others write.
// `env`: our environment. Errors: invalid_argument with who started how many, and the command that makes them one
// world.
Result<void> check_lone_copy(const EnvLookup& env);

}  // namespace ddprun::trainer
