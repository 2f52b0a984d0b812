#pragma once

#include <string>

#include "common/options.h"
#include "common/result.h"
#include "launcher/options/options.h"

// --rdzv-conf KEY=VALUE,...: one table of its keys. What they set and its defaults are in JobSettings and
// RendezvousConf; help and the README's list come from here.
namespace ddprun::launcher {

// `out.job.backend` is known already. What means nothing goes to out.warnings. Errors: invalid_argument.
Result<void> read_rdzv_conf(const ParsedOptions& parsed, LaunchOptions& out);

std::string rdzv_conf_help();      // the keys, for --help
std::string rdzv_conf_markdown();  // for the README

}  // namespace ddprun::launcher
