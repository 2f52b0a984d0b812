#pragma once

#include <functional>
#include <string>

#include "common/clock.h"
#include "common/rdzv_protocol.h"
#include "common/result.h"
#include "common/types.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {

// ddpctl's connection to a rendezvous. Blocking, with deadlines.
class CtlClient {
 public:
  // Errors: refused or timed_out naming the endpoint; refused with the server's sentence (another version).
  static Result<CtlClient> connect(const Endpoint& endpoint, std::chrono::milliseconds limit);

  // Sends and waits for the Reply; FlightParts before it go to `on_part`. Errors: timed_out, peer_closed, malformed.
  Result<rdzv::Reply> ask(const rdzv::OperatorMessage& message, std::chrono::milliseconds limit,
                          const std::function<void(rdzv::FlightPart)>& on_part = {});

 private:
  explicit CtlClient(UniqueFd fd, Endpoint endpoint) : fd_(std::move(fd)), endpoint_(std::move(endpoint)) {}
  Result<rdzv::ServerMessage> read(TimePoint deadline);

  UniqueFd fd_;
  Endpoint endpoint_;
};

}  // namespace ddprun::launcher
