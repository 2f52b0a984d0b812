#include "rendezvous/membership/damping.h"

#include <algorithm>

namespace ddprun::rendezvous {

namespace {

// kFirst, doubled for each time beyond the first one that is not free.
Duration doubled(int beyond, Duration most) {
  if (beyond <= 0) return Duration(0);
  const Duration wait = Damping::kFirst * (1 << std::min(beyond - 1, 10));
  return std::min(wait, most);
}

}  // namespace

void Damping::count(Record& record, TimePoint now) {
  if (record.times > 0 && now >= record.last + kForget) record.times = 0;
  ++record.times;
  record.last = now;
}

bool Damping::went(const std::string& host, Duration stayed, Round round, TimePoint now) {
  if (stayed >= kShortStay) {
    hosts_.erase(host);
    return false;
  }
  if (hosts_.size() >= kHostsKept && !hosts_.contains(host)) {
    const auto older = [](const auto& a, const auto& b) { return a.second.last < b.second.last; };
    hosts_.erase(std::min_element(hosts_.begin(), hosts_.end(), older));
  }
  Record& record = hosts_[host];
  count(record, now);
  if (round.value > 0 && round != last_round_) {
    last_round_ = round;
    count(rounds_, now);
  } else if (rounds_.times > kFreeForAll && now < rounds_.last + kForget) {
    rounds_.last = now;  // they still come and go, only that nobody is disturbed by it
  }
  return record.times > kFree;
}

Duration Damping::patience(const std::string& host, TimePoint now) const {
  const auto fresh = [&](const Record& record) { return record.times > 0 && now < record.last + kForget; };
  Duration wait{0};
  if (const auto found = hosts_.find(host); found != hosts_.end() && fresh(found->second)) {
    wait = doubled(found->second.times - kFree, kMost);
  }
  if (fresh(rounds_)) wait = std::max(wait, doubled(rounds_.times - kFreeForAll, kMostForAll));
  return wait;
}

int Damping::times(const std::string& host) const {
  const auto found = hosts_.find(host);
  return found == hosts_.end() ? 0 : found->second.times;
}

}  // namespace ddprun::rendezvous
