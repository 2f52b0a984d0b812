#pragma once

#include "common/result.h"
#include "worker/comm/communicator.h"

namespace ddprun::trainer {

// How one rank's part went, said to all. If any failed, all ranks get the error of the lowest such rank (the others'
// copies begin with "rank N: "), so that all end, with one code, and one of them tells the user.
struct Agreement {
  Result<void> result;
  bool said_elsewhere = false;  // the error is another rank's, which prints it
};

// Collective. Fails by itself only when the communicator does.
Agreement agree(comm::Communicator& communicator, Result<void> mine);

}  // namespace ddprun::trainer
