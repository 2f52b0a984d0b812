#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"

// Process ids are plain ints here: pid_t's header is the system's.
namespace ddprun::launcher {

// What becomes of processes that workers leave (--leftovers).
enum class Leftovers {
  end,   // they have some time to go, then SIGTERM, then SIGKILL
  wait,  // the attempt ends when they have ended by themselves
  keep,  // they are left running
};

struct LeftoverTimes {
  std::chrono::milliseconds leave{2'000};            // to go by themselves; torch's data loaders notice in this time
  std::chrono::milliseconds terminate{1'500};        // after SIGTERM
  std::chrono::milliseconds asked{30'000};           // after the stop signal that only the worker had heard
  std::chrono::milliseconds tracker{10'000};         // for trackers, once nothing else is left
  std::chrono::milliseconds hurried_tracker{2'000};  // the same when somebody is impatient
  std::chrono::milliseconds dead{5'000};             // after SIGKILL; then it is stuck in the kernel
  std::chrono::milliseconds unknown{1'000};          // one that waits in the kernel may be a tracker for so long
};

// A process that a worker left, as one look has shown it.
struct Leftover {
  int pid = 0;
  unsigned long long start_time = 0;  // tells it from a later process with the same id
  // Its work is to clean up when the others are gone (multiprocessing's resource tracker, torch's shm manager): it ends
  // by itself when nobody holds its pipe any more, and what it guards stays in /dev/shm when it is killed before.
  bool tracker = false;
  TimePoint since;  // when its worker ended
  // The worker was asked to stop and died of that signal, as a shell does that is the wrapper of the true program: what
  // it leaves has not heard it yet, and may have a state to save. 0: not so.
  int unheard_signal = 0;
  bool no_patience = false;  // its worker was killed: it is to go at once
};

// When which leftover gets which signal. Decides only.
class LeftoverPlan {
 public:
  struct Order {
    int pid = 0;
    unsigned long long start_time = 0;
    int signal = 0;
  };
  struct Step {
    std::vector<Order> orders;
    std::vector<int> stuck;             // newly given up: SIGKILL does not reach them
    bool done = false;                  // nothing is left that can be waited for
    std::optional<TimePoint> deadline;  // when the next order is due; nullopt: none is, or only a change brings one
  };

  LeftoverPlan(Leftovers policy, LeftoverTimes times) : policy_(policy), times_(times) {}

  void hurry() { hurried_ = true; }
  // --leftovers=wait is over: they are ended as with `end` from now on. `signal` not 0: somebody wants the job to end,
  // so all get it at once and have times.asked. Does nothing for another policy.
  void stop_waiting(int signal);
  Leftovers policy() const { return policy_; }  // as it is by now
  bool hurried() const { return hurried_; }
  // `left`: all that is there now. `workers_run`: other workers of the attempt still run, so trackers may be in use and
  // --leftovers=wait|keep has nothing to say yet.
  Step on_look(const std::vector<Leftover>& left, bool workers_run, TimePoint now);

 private:
  struct Told {
    std::optional<TimePoint> asked, terminated, killed;
    bool stuck = false;
  };
  std::optional<TimePoint> tell(const Leftover& leftover, TimePoint now, Step& step);

  Leftovers policy_;
  LeftoverTimes times_;
  bool hurried_ = false;
  bool stopped_waiting_ = false;
  std::optional<TimePoint> stopped_waiting_at_;
  int asked_signal_ = 0;
  std::optional<TimePoint> trackers_alone_since_;
  std::map<std::pair<int, unsigned long long>, Told> told_;
};

}  // namespace ddprun::launcher
