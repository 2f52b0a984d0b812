#pragma once

#include <memory>

#include "worker/comm/shm_group.h"
#include "worker/comm/transport.h"

namespace ddprun::comm {

// All ranks on one host. Three ways through, chosen by what the ranks published:
//   flat    small messages: everybody writes into its own small buffer, arrives, and combines all of them by itself;
//   direct  memory of allocate(): each rank combines its part of everybody's memory and stores the result everywhere;
//   staged  other memory: the same through staging buffers, pipelined.
// The sums are taken in the same order in all three: the same bits.
std::unique_ptr<Transport> make_shm_transport(std::unique_ptr<ShmGroup> group);

}  // namespace ddprun::comm
