#pragma once

#include <memory>

#include "worker/comm/tcp_ring.h"
#include "worker/comm/transport.h"

namespace ddprun::comm {

// One rank on each host: everything goes round the ring, straight from the caller's memory.
std::unique_ptr<Transport> make_tcp_transport(std::unique_ptr<TcpRing> ring);

}  // namespace ddprun::comm
