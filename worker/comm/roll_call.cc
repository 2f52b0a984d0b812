#include "worker/comm/roll_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace ddprun::comm {

std::string rank_list(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 16;
  const std::size_t named = std::min(ranks.size(), kNamed);
  const std::string more = ranks.size() > named ? fmt::format(" and {} more", ranks.size() - named) : "";
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks",
                     fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "), more);
}

RollCall::RollCall(KeyValue& store, std::string key, int rank, int world_size, std::chrono::milliseconds interval)
    : store_(store),
      key_(std::move(key)),
      rank_(rank),
      world_size_(world_size),
      interval_(interval),
      began_(SteadyClock::now()),
      next_word_(began_ + interval) {}

Result<void> RollCall::come() {
  auto marked = store_.set(mark_of(rank_), "1");
  if (!marked) return std::move(marked).error().with_context("cannot tell the other ranks that this one is there");
  return {};
}

void RollCall::leave() { (void)store_.erase(mark_of(rank_)); }

Result<std::string> RollCall::get(std::string_view key, TimePoint deadline) {
  for (;;) {
    const TimePoint until = std::min(deadline, next_word_);
    auto value = store_.get(key, until);
    if (value || value.error().code() != Errc::timed_out || until == deadline) return value;
    still_waiting();
  }
}

void RollCall::still_waiting() {
  next_word_ = SteadyClock::now() + interval_;
  for (int lower = 0; lower < rank_; ++lower) {
    auto there = store_.has(mark_of(lower));
    if (!there || *there) return;  // that one speaks
  }
  auto absent = missing();
  if (!absent || absent->empty()) return;
  log_warning("rank {} has waited {} s for {}: {} of {} ranks have come", rank_,
              std::chrono::round<std::chrono::seconds>(SteadyClock::now() - began_).count(), rank_list(*absent),
              world_size_ - static_cast<int>(absent->size()), world_size_);
}

Result<std::vector<int>> RollCall::missing() {
  std::vector<int> absent;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    auto there = store_.has(mark_of(rank));
    if (!there) return std::move(there).error();
    if (!*there) absent.push_back(rank);
  }
  return absent;
}

Error RollCall::explain(Error why, std::chrono::milliseconds limit) {
  const Errc code = why.code();
  if (code != Errc::timed_out && code != Errc::peer_closed && code != Errc::refused) return why;
  auto absent = missing();
  if (!absent || absent->empty()) return why;
  return Error(Errc::timed_out,
               fmt::format("{} did not come within {:g} s (ddp.connect_timeout_s): {} of {} ranks are there. Were they "
                           "started, and did they end or hang before? Their own words say why",
                           rank_list(*absent), std::chrono::duration<double>(limit).count(),
                           world_size_ - static_cast<int>(absent->size()), world_size_));
}

}  // namespace ddprun::comm
