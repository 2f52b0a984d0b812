#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/types.h"
#include "launcher/process/kill_tree.h"
#include "launcher/process/leftover_plan.h"
#include "launcher/process/worker_cgroup.h"

namespace ddprun::launcher {

struct SweeperOptions {
  Leftovers policy = Leftovers::end;
  LeftoverTimes times;
  std::string proc_root = "/proc";
  std::function<bool(pid_t)> is_guard;
  // An ended worker has left nothing, or nothing any more.
  std::function<void(LocalRank)> on_clean;
  // After all_ended(): nothing of the attempt is left, or it has been named and is let be.
  std::function<void()> on_swept;
};

// Finds and ends what workers leave behind. All that they start is a descendant of ours (we are their subreaper), so
// that is where it looks: in small steps between which the event loop goes on, and again in growing intervals and when
// a child has ended, as long as there is something. Never waits. Same thread as the io_context; the callbacks come from
// the event loop.
class Sweeper {
 public:
  Sweeper(boost::asio::io_context& io, SweeperOptions options, WorkerCgroup& cgroup);

  void begin_attempt(std::string token);
  void add_worker(LocalRank rank, pid_t pid);
  // It has been reaped, or is left behind. See Leftover for the other two.
  void worker_ended(LocalRank rank, bool no_patience, int unheard_signal);
  void all_ended();
  void hurry();
  void stop_waiting(int signal);  // LeftoverPlan::stop_waiting()
  void child_ended();             // a child of ours that is no worker; it may have been the last one
  // Kills everything that is left, but trackers (`limit` is for them to go), without the event loop.
  void end_now(std::chrono::milliseconds limit);

 private:
  struct Owner {
    pid_t pid = 0;  // of the worker; its session, too
    bool ended = false, clean = false, no_patience = false;
    int unheard_signal = 0;
    TimePoint ended_at;
  };
  struct Found {
    Leftover leftover;
    std::optional<std::int64_t> rank;
    std::string command;
  };

  bool is_busy() const;
  void look_soon();
  void begin_look();
  void go_on();
  void judge();
  ProcessWalk make_walk();
  void examine(pid_t pid, const ProcessStat& stat);
  void carry_out(const LeftoverPlan::Step& step);
  void finish();
  void say_what_is_waited_for();
  static std::string name(const Found& found);
  // A process must show that it is the workers': we had children before, or strangers come to us as well (PID 1).
  bool strict() const { return is_pid_one_ || !not_ours_.empty(); }
  void wait_until(TimePoint when);

  boost::asio::io_context& io_;
  SweeperOptions options_;
  WorkerCgroup& cgroup_;
  boost::asio::steady_timer timer_;
  LeftoverPlan plan_;
  std::string token_;
  std::map<std::int64_t, Owner> owners_;
  std::map<pid_t, unsigned long long> not_ours_;  // children that were there before us, with their start times
  bool is_pid_one_;

  std::optional<ProcessWalk> walk_;
  std::vector<Found> found_;
  std::set<pid_t> in_cgroup_;
  std::set<std::pair<pid_t, unsigned long long>> trackers_;  // with their start times
  std::map<pid_t, TimePoint> hangs_since_;                   // in the kernel, since when a look has found it there
  bool look_again_ = false, saw_zombie_ = false;
  int zombie_looks_ = 0;
  bool all_ended_ = false, swept_ = true, said_ = false;
  TimePoint last_end_;
  std::chrono::milliseconds interval_{0};
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);  // handlers look whether we are gone
};

}  // namespace ddprun::launcher
