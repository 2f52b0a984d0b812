#pragma once

#include <string>
#include <string_view>

#include "common/types.h"

// What a rendezvous that greets (HelloReply::why) says about itself: "daemon", or one of those of a launcher:
// "embedded", "embedded of RUN_ID" (serves other jobs too, and ends with that one), "embedded only of RUN_ID" (refuses
// other jobs). An agent that knows "embedded" alone takes the others for a daemon. Pure.
namespace ddprun::rdzv {

std::string embedded_greeting(const RunId& owner, bool only);  // owner "": not said

struct EmbeddedGreeting {
  bool embedded = false;
  bool foreign = false;  // in a launcher of another job
  bool refuses = false;  // it is for that job only
};
EmbeddedGreeting read_embedded_greeting(std::string_view why, const RunId& mine);

}  // namespace ddprun::rdzv
