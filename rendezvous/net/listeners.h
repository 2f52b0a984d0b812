#pragma once

#include <cstddef>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::rendezvous {

// `first` and others on its port, each with an accept queue of its own (it holds somaxconn, 4096 by default): a job of
// 8000 ranks overflows one, and each client that is turned away tries again after a whole second. The kernel spreads
// connections over all by their addresses. All are non-blocking, and give keepalive and TCP_NODELAY to what they
// accept.
std::vector<UniqueFd> listen_side_by_side(UniqueFd first);

// Raises the soft limit on descriptors to the hard one. Returns the old soft limit, for what is exec'd from here.
std::size_t raise_descriptor_limit();

}  // namespace ddprun::rendezvous
