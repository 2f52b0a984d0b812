#pragma once

#include <string>

#include "common/options.h"
#include "launcher/options/options.h"
#include "launcher/process/process.h"

// ddprun over a list of hosts (--hosts, --hostfile): what main() needs of it.
namespace ddprun::launcher {

struct HostsContext {
  std::string own_path;  // of this binary
  std::string called;    // argv[0]; python environments are found by it
  const InheritedSignals& inherited;
};

// Runs the job whose options name a list of hosts; returns the exit code.
int run_on_hosts(const OptionTable& table, const ParsedOptions& parsed, Flavour flavour, const HostsContext& context);

// argv of the other end: {"ddprun", kNodeWord}.
bool is_node_call(int argc, char** argv);
int serve_as_node(const HostsContext& context);

}  // namespace ddprun::launcher
