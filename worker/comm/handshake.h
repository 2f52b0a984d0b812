#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "worker/comm/key_value.h"

// What the handshakes over unix sockets (shm_bootstrap) and TCP (tcp_ring_connect) have in common.
namespace ddprun::comm {

// Hex digits of a token: who has read it in the store belongs to this attempt.
constexpr std::size_t kTokenSize = 32;
Result<std::string> random_token();

std::string to_hex(std::string_view bytes);

// False: the deadline passed. Errors: system.
Result<bool> wait_readable(int fd, TimePoint deadline);
// The same while another rank is waited for: `store` says so now and then.
Result<bool> wait_readable(int fd, TimePoint deadline, KeyValue& store);

}  // namespace ddprun::comm
