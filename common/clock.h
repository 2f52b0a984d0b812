#pragma once

#include <chrono>

namespace ddprun {

// Steady time everywhere: never a wall clock, never two hosts' clocks compared. Pure code gets TimePoint arguments.
using SteadyClock = std::chrono::steady_clock;
using TimePoint = SteadyClock::time_point;
using Duration = SteadyClock::duration;

// Time that a test moves by hand.
class ManualClock {
 public:
  TimePoint now() const { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{std::chrono::seconds(1000)};
};

}  // namespace ddprun
