#pragma once

#include <cstddef>
#include <vector>

#include "common/result.h"
#include "worker/comm/communicator.h"

namespace ddprun::ddp {

struct Gathered {
  std::vector<std::byte> bytes;     // rank-major
  std::vector<std::size_t> counts;  // elements of each rank
};

// Each rank's elements (any number, none too), one rank after the other: predictions, indices. Collective.
// Errors: invalid_argument when ranks gather different dtypes; the communicator's.
Result<Gathered> all_gather_concat(comm::Communicator& communicator, comm::Block mine);

}  // namespace ddprun::ddp
