#include "worker/ranks/agree.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "worker/ddp/sync_metrics.h"

namespace ddprun::trainer {

Agreement agree(comm::Communicator& communicator, Result<void> mine) {
  const int world = communicator.world_size();
  if (world == 1) return {std::move(mine), false};
  std::array<double, 1> lowest{static_cast<double>(mine ? world : communicator.rank())};
  auto met = ddp::sync_metrics(communicator, lowest, comm::Reduce::min);
  if (!met) {
    // Our own failure explains more than the lost peers do.
    if (!mine) return {std::move(mine), false};
    return {std::move(met), false};
  }
  const int teller = static_cast<int>(lowest[0]);
  if (teller == world) return {};
  // Code, length, then the sentence: fixed size, so one broadcast does.
  constexpr std::size_t kRoom = 2048;
  std::array<std::int32_t, 2 + kRoom / 4> message{};
  if (communicator.rank() == teller) {
    const std::string text = mine.error().message().substr(0, kRoom);
    message[0] = static_cast<std::int32_t>(mine.error().code());
    message[1] = static_cast<std::int32_t>(text.size());
    std::memcpy(message.data() + 2, text.data(), text.size());
  }
  auto sent = communicator.broadcast(comm::Block{message.data(), message.size(), comm::DType::i32}, teller).wait();
  if (communicator.rank() == teller) return {std::move(mine), false};
  if (!sent) return {std::move(sent), false};
  const std::string text(reinterpret_cast<const char*>(message.data() + 2), static_cast<std::size_t>(message[1]));
  return {Error(static_cast<Errc>(message[0]), fmt::format("rank {}: {}", teller, text)), true};
}

Result<std::string> text_of_rank_zero(comm::Communicator& communicator, const std::string& mine) {
  auto size = static_cast<std::int64_t>(mine.size());
  auto sent = communicator.broadcast(comm::Block{&size, 1, comm::DType::i64}, 0).wait();
  if (!sent) return std::move(sent).error();
  std::vector<std::int32_t> words((static_cast<std::size_t>(size) + 3) / 4);
  if (communicator.rank() == 0) std::memcpy(words.data(), mine.data(), mine.size());
  sent = communicator.broadcast(comm::Block{words.data(), words.size(), comm::DType::i32}, 0).wait();
  if (!sent) return std::move(sent).error();
  return std::string(reinterpret_cast<const char*>(words.data()), static_cast<std::size_t>(size));
}

Result<std::vector<std::int64_t>> numbers_of_all(comm::Communicator& communicator, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(communicator.world_size()));
  auto gathered =
      communicator
          .all_gather(comm::Block{&mine, 1, comm::DType::i64}, comm::Block{all.data(), all.size(), comm::DType::i64})
          .wait();
  if (!gathered) return std::move(gathered).error();
  return all;
}

}  // namespace ddprun::trainer
