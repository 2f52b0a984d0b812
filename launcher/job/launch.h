#pragma once

#include <cstdint>
#include <string>

#include "launcher/agent/services.h"
#include "launcher/options/options.h"
#include "launcher/process/process.h"

namespace ddprun::launcher {

struct LaunchContext {
  std::string program_name;   // "ddprun" or "ddprun-launch", in front of messages
  std::string own_folder;     // where our binary lies; "" = not known
  std::string called_folder;  // that of the path that we were called by; "" = by a name in PATH
  InheritedSignals inherited;
  Services services;
  std::uint16_t endpoint_ports = 1;  // an engine's rule for ports: AgentOptions
  bool serve_own_run_only = false;
};

// Runs a job on this node from its checks to its last word; returns the exit code. Call once, from the main thread,
// before any other thread or socket exists.
int launch(LaunchOptions options, LaunchContext context);

}  // namespace ddprun::launcher
