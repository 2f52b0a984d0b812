#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// Rank 0's text on every rank. Collective. Errors: the communicator's.
Result<std::string> text_of_rank_zero(comm::Communicator& communicator, const std::string& mine);
// Every rank's number, by rank. Collective. Errors: the communicator's.
Result<std::vector<std::int64_t>> numbers_of_all(comm::Communicator& communicator, std::int64_t mine);

}  // namespace ddprun::trainer
