#pragma once

#include "common/options.h"
#include "common/result.h"
#include "worker/config/config.h"

namespace ddprun::trainer {

// The trainer's flags; everything else is in the configuration file.
const OptionTable& option_table();

// --config (or --cfg) and --set, read and checked.
Result<TrainerConfig> config_from_options(const ParsedOptions& options);

}  // namespace ddprun::trainer
