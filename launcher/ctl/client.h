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

  // Sends and waits for the Reply, whose parts are put together; what else comes before it (FlightPart, Roster) goes to
  // `on_message`. `limit` is for each message of the answer. Errors: timed_out, peer_closed, malformed.
  Result<rdzv::Reply> ask(const rdzv::OperatorMessage& message, std::chrono::milliseconds limit,
                          const std::function<void(rdzv::ServerMessage)>& on_message = {});

 private:
  explicit CtlClient(UniqueFd fd, Endpoint endpoint) : fd_(std::move(fd)), endpoint_(std::move(endpoint)) {}
  Result<rdzv::ServerMessage> read(TimePoint deadline);

  UniqueFd fd_;
  Endpoint endpoint_;
};

}  // namespace ddprun::launcher
