#include "worker/ddp/sync_metrics.h"

#include <fmt/format.h>

#include <vector>

namespace ddprun::ddp {

Result<void> sync_metrics(comm::Communicator& communicator, std::span<double> values, comm::Reduce op) {
  return communicator.all_reduce(comm::Block{values.data(), values.size(), comm::DType::f64}, op).wait();
}

Result<void> check_equal(comm::Communicator& communicator, std::string_view what, std::int64_t value) {
  const std::size_t world = static_cast<std::size_t>(communicator.world_size());
  std::vector<std::int64_t> all(world);
  Result<void> ok =
      communicator
          .all_gather(comm::Block{&value, 1, comm::DType::i64}, comm::Block{all.data(), world, comm::DType::i64})
          .wait();
  if (!ok) return ok.error().with_context(fmt::format("comparing {} of all ranks", what));
  for (std::size_t r = 1; r < world; ++r) {
    if (all[r] != all[0]) {
      return Error(Errc::invalid_argument, fmt::format("{}: rank 0 has {}, rank {} has {}", what, all[0], r, all[r]));
    }
  }
  return {};
}

}  // namespace ddprun::ddp
