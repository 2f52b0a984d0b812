#include "worker/ddp/all_gather_concat.h"

#include <cstdint>
#include <span>
#include <string>

namespace ddprun::ddp {

Result<Gathered> all_gather_concat(comm::Communicator& communicator, comm::Block mine) {
  const std::size_t world = static_cast<std::size_t>(communicator.world_size());
  std::int64_t type = static_cast<std::int64_t>(mine.dtype);
  std::vector<std::int64_t> types(world);
  Result<void> ok =
      communicator
          .all_gather(comm::Block{&type, 1, comm::DType::i64}, comm::Block{types.data(), world, comm::DType::i64})
          .wait();
  if (!ok) return ok.error();
  for (std::size_t r = 1; r < world; ++r) {
    if (types[r] != types[0]) {
      return Error(Errc::invalid_argument, std::string("all_gather_concat: rank 0 gathers ") +
                                               name_of(static_cast<comm::DType>(types[0])) + ", rank " +
                                               std::to_string(r) + " " + name_of(static_cast<comm::DType>(types[r])));
    }
  }
  std::vector<std::size_t> sizes;
  auto bytes = comm::all_gather_concat(communicator,
                                       std::span(static_cast<const std::byte*>(mine.data), mine.size_bytes()), &sizes);
  if (!bytes) return bytes.error();
  Gathered result;
  result.bytes = std::move(bytes).value();
  for (std::size_t size : sizes) result.counts.push_back(size / comm::size_of(mine.dtype));
  return result;
}

}  // namespace ddprun::ddp
