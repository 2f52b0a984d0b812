#pragma once

#include <chrono>
#include <cstdint>

#include "common/clock.h"

namespace ddprun::rendezvous {

// A scanner comes a thousand times: one line for the first of a kind, then at most one in ten seconds; each says how
// many there were.
class RefusalLog {
 public:
  static constexpr std::chrono::seconds kInterval{10};

  template <typename Write>
  void note(Write write) {
    const TimePoint now = SteadyClock::now();
    ++count_;
    if (count_ > 1 && now - last_ < kInterval) return;
    last_ = now;
    write(count_);
  }

 private:
  std::uint64_t count_ = 0;
  TimePoint last_{};
};

}  // namespace ddprun::rendezvous
