#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "common/rdzv_protocol.h"

namespace ddprun::launcher {

// What the nodes of a job sent for `ddpctl flight`, for people: first who waits where and who is missing, over all
// nodes; then each worker's last `last` collectives. Nodes whose bytes do not parse are named. Pure.
std::string flight_text(std::span<const rdzv::FlightPart> parts, std::size_t last);

}  // namespace ddprun::launcher
