#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/types.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/host_job.h"
#include "launcher/hosts/host_list.h"
#include "launcher/process/process.h"

// Runs a job over a list of hosts: a remote shell for each, their output on our console, our signals to them, one last
// word.
namespace ddprun::launcher::hosts {

struct StarterOptions {
  std::vector<Host> hosts;
  HostJobOptions job;
  std::vector<std::string> remote_shell;
  std::string own_path;           // of this binary, here and there
  std::vector<int> ends_job;      // signals
  std::vector<int> only_forward;  // signals
  std::uint16_t port = 0;         // of the rendezvous; 0 = what the first host found free
  // The order for a host, once it is known where the first one can be reached.
  std::function<Start(std::size_t host, const Endpoint& first)> order;
  std::vector<std::string> notes;  // said before anything starts
};

// Returns the exit code. Main thread only.
int start_on_hosts(StarterOptions options, const InheritedSignals& inherited);

// True where `host` needs no remote shell: "localhost", a loopback address, this host's own name or address.
bool is_this_host(const Host& host);

}  // namespace ddprun::launcher::hosts
