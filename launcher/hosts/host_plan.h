#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/options.h"
#include "common/result.h"
#include "common/types.h"
#include "launcher/hosts/host_list.h"

// Options of the starting host -> the list, and the command line and variables of the ddprun on each host. Pure: files
// come in through a function. Errors: invalid_argument, one sentence (exit code 2).
namespace ddprun::launcher {

// The path's whole text, or why it cannot be read.
using ReadFile = std::function<Result<std::string>(const std::string& path)>;

// True where a list of hosts is given: this launcher starts others.
bool has_host_list(const ParsedOptions& parsed);

Result<HostList> read_host_list(const ParsedOptions& parsed, const EnvLookup& env, const ReadFile& read);

struct HostPlan {
  std::vector<Host> hosts;
  std::size_t min_hosts = 1;
  std::string run_id;
  bool static_ranks = false;  // --rdzv-backend=static: master-addr and master-port instead of an endpoint
  bool first_serves = true;   // false: an endpoint was given, and who serves it is found out as without a list
  std::uint16_t port = 0;     // given; 0 = one that is free on the first host
};

// `run_id`: for a job that has none. Errors: options that a list of hosts answers already (--node-rank, --standalone,
// --local-addr), a number of nodes that is not that of the list.
Result<HostPlan> plan_hosts(const ParsedOptions& parsed, HostList list, const std::string& run_id);

// What ddprun on the host of this index is called with, without argv[0]. `first`: the rendezvous.
std::vector<std::string> node_arguments(const OptionTable& table, const ParsedOptions& parsed, const HostPlan& plan,
                                        std::size_t index, const Endpoint& first);

// "NAME=value" of those variables of `environment` that every host gets: options by variable, what Python, NCCL and
// their like read, and those of --pass-env ("NAME" or "BEGIN*").
std::vector<std::string> passed_variables(const std::vector<std::pair<std::string, std::string>>& environment,
                                          const std::vector<std::string>& more);
// Variables that are for the starting host only.
bool is_for_starter_only(std::string_view name);

}  // namespace ddprun::launcher
