#pragma once

#include <string>
#include <vector>

#include "common/options.h"
#include "common/result.h"

namespace ddprun::comm {

// Variables that NCCL reads and takes silently, or fails on much later: NCCL_SOCKET_IFNAME must match an interface of
// this host, NCCL_ALGO and NCCL_PROTO must name what NCCL knows. interfaces: the host's. Errors: invalid_argument
// naming the variable and what there is.
Result<void> check_nccl_environment(const EnvLookup& env, const std::vector<std::string>& interfaces);

std::vector<std::string> network_interfaces();  // of this host, by name

}  // namespace ddprun::comm
