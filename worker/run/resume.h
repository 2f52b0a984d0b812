#pragma once

#include "common/result.h"
#include "worker/run/session.h"

namespace ddprun::trainer {

// Rank 0: opens checkpoint.dir, finds the checkpoint to go on from, if there is one, and puts it into model, optimizer
// and state.
Result<void> restore(Session& session);
// Rank 0's position to all. Collective. The tensors are broadcast by the caller.
Result<void> share_state(Session& session);

}  // namespace ddprun::trainer
