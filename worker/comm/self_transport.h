#pragma once

#include <memory>

#include "worker/comm/transport.h"

namespace ddprun::comm {

// A world of one: every collective is a copy or nothing.
std::unique_ptr<Transport> make_self_transport();

}  // namespace ddprun::comm
