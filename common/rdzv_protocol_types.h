#pragma once

#include <cstdint>

#include "common/rdzv_protocol.h"

// The numbers of the table in rdzv_protocol.h, for rdzv_protocol_write.cc and rdzv_protocol_read.cc only.
namespace ddprun::rdzv {

enum Type : std::uint8_t {
  kJoin = 1,
  kRegister = 2,
  kHeartbeat = 3,
  kLeave = 4,
  kFailure = 5,
  kDone = 6,
  kFlightReply = 8,
  kAssignment = 64,
  kHeartbeatAck = 65,
  kRestart = 66,
  kFinished = 67,
  kShutdown = 68,
  kRefused = 69,
  kFlightRequest = 71,
  kNotice = 72,
  kRegistered = 73,
  kStatusRequest = 128,
  kDrainRequest = 129,
  kStopRequest = 130,
  kFlightQuery = 131,
  kRosterRequest = 132,
  kReply = 160,
  kFlightPart = 161,
  kReplyPart = 162,
  kRoster = 163,
};

inline constexpr std::uint32_t kNoRoot = 0xffffffff;

}  // namespace ddprun::rdzv
