#include "launcher/process/sweeper.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <thread>

#include "common/log.h"
#include "common/signal_names.h"
#include "launcher/process/process.h"

namespace asio = boost::asio;

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kStep = 100;  // files of /proc a step: about a millisecond
constexpr milliseconds kFirstInterval{10}, kLongInterval{100}, kIdleInterval{1'000};
constexpr int kZombieLooks = 3;

}  // namespace

Sweeper::Sweeper(asio::io_context& io, SweeperOptions options, WorkerCgroup& cgroup)
    : io_(io),
      options_(std::move(options)),
      cgroup_(cgroup),
      timer_(io),
      plan_(options_.policy, options_.times),
      is_pid_one_(::getpid() == 1) {
  for (const pid_t pid : find_children(options_.proc_root, ::getpid())) {
    const auto stat = read_process_stat(options_.proc_root, pid);
    if (stat && !options_.is_guard(pid)) not_ours_.emplace(pid, stat->start_time);
  }
}

void Sweeper::begin_attempt(std::string token) {
  token_ = std::move(token);
  plan_ = LeftoverPlan(options_.policy, options_.times);
  owners_.clear();
  trackers_.clear();
  hangs_since_.clear();
  walk_.reset();
  timer_.cancel();
  all_ended_ = swept_ = said_ = false;
}

void Sweeper::add_worker(LocalRank rank, pid_t pid) { owners_[rank.value].pid = pid; }

void Sweeper::worker_ended(LocalRank rank, bool no_patience, int unheard_signal) {
  Owner& owner = owners_[rank.value];
  owner.ended = true;
  owner.no_patience = no_patience;
  owner.unheard_signal = unheard_signal;
  last_end_ = owner.ended_at = SteadyClock::now();
  look_soon();
}

void Sweeper::all_ended() {
  all_ended_ = true;
  if (owners_.empty()) last_end_ = SteadyClock::now();
  look_soon();
}

void Sweeper::hurry() {
  plan_.hurry();
  look_soon();
}

void Sweeper::stop_waiting(int signal) {
  plan_.stop_waiting(signal);
  look_soon();
}

void Sweeper::child_ended() { look_soon(); }

bool Sweeper::is_busy() const {
  if (all_ended_) return !swept_;
  return std::any_of(owners_.begin(), owners_.end(),
                     [](const auto& entry) { return entry.second.ended && !entry.second.clean; });
}

void Sweeper::look_soon() {
  if (!is_busy()) return;
  interval_ = kFirstInterval;
  if (walk_) {
    look_again_ = true;  // what has just changed may lie where the look under way has been already
    return;
  }
  wait_until(SteadyClock::now());
}

void Sweeper::wait_until(TimePoint when) {
  timer_.expires_at(when);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& ec) {
    if (ec || alive.expired() || walk_ || !is_busy()) return;
    begin_look();
  });
}

ProcessWalk Sweeper::make_walk() {
  std::set<pid_t> without;
  std::erase_if(not_ours_, [this](const auto& child) {
    const auto stat = read_process_stat(options_.proc_root, child.first);
    return !stat || stat->start_time != child.second;
  });
  for (const auto& [pid, start_time] : not_ours_) without.insert(pid);
  for (const auto& [rank, owner] : owners_) {
    if (!owner.ended) without.insert(owner.pid);
  }
  ProcessWalk walk(options_.proc_root, ::getpid(), std::move(without));
  in_cgroup_.clear();
  if (all_ended_) {
    for (const pid_t pid : cgroup_.members()) {
      in_cgroup_.insert(pid);
      walk.also(pid);
    }
  }
  return walk;
}

void Sweeper::begin_look() {
  look_again_ = false;
  saw_zombie_ = false;
  found_.clear();
  walk_.emplace(make_walk());
  go_on();
}

void Sweeper::go_on() {
  const bool complete = walk_->step(kStep);
  for (const auto& [pid, stat] : walk_->take()) examine(pid, stat);
  if (complete) {
    walk_.reset();
    judge();
    return;
  }
  asio::post(io_, [this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired() && walk_) go_on();
  });
}

void Sweeper::examine(pid_t pid, const ProcessStat& stat) {
  if (options_.is_guard(pid)) return;
  const bool is_worker =
      std::any_of(owners_.begin(), owners_.end(), [pid](const auto& o) { return o.second.pid == pid; });
  if (is_worker) return;  // stuck in the kernel and left behind
  if (stat.is_dead()) {
    saw_zombie_ = true;
    return;
  }
  Found found;
  found.leftover.pid = pid;
  found.leftover.start_time = stat.start_time;
  for (const auto& [rank, owner] : owners_) {
    if (owner.pid == stat.session) found.rank = rank;
  }
  bool ours = found.rank || in_cgroup_.count(pid) != 0;
  // What the memory of a process that hangs in the kernel holds may not be readable without hanging, too.
  if (stat.state != 'D') {
    if (is_tracker(options_.proc_root, pid)) trackers_.emplace(pid, stat.start_time);
    if (const auto token = find_token(options_.proc_root, pid, token_); token && !found.rank) {
      ours = true;
      for (const auto& [rank, owner] : owners_) {
        if (*token == token_ + "." + std::to_string(rank)) found.rank = rank;
      }
    }
  }
  if (strict() && !ours) return;
  // Once known: one that is about to end shows no command any more. One that cannot be asked has some time to show it.
  found.leftover.tracker = trackers_.count({pid, stat.start_time}) != 0;
  if (stat.state != 'D') {
    hangs_since_.erase(pid);
  } else if (SteadyClock::now() <
             hangs_since_.emplace(pid, SteadyClock::now()).first->second + options_.times.unknown) {
    found.leftover.tracker = true;
  }
  if (!all_ended_ && (!found.rank || !owners_[*found.rank].ended)) return;  // a live worker's, or nobody knows whose
  if (!found.rank) {
    found.leftover.since = last_end_;
  } else {
    found.leftover.since = owners_[*found.rank].ended_at;
    found.leftover.no_patience = owners_[*found.rank].no_patience;
    found.leftover.unheard_signal = owners_[*found.rank].unheard_signal;
  }
  found.command = describe_command(options_.proc_root, pid, stat);
  found_.push_back(std::move(found));
}

void Sweeper::judge() {
  const TimePoint now = SteadyClock::now();
  std::set<std::int64_t> has_left;
  std::vector<Leftover> left;
  for (const Found& found : found_) {
    left.push_back(found.leftover);
    if (found.rank) has_left.insert(*found.rank);
  }
  // A zombie's children may have come to us after we had looked. One that its tracer keeps is there for long.
  zombie_looks_ = saw_zombie_ ? zombie_looks_ + 1 : 0;
  const bool unsure = look_again_ || (saw_zombie_ && zombie_looks_ <= kZombieLooks);
  const auto step = plan_.on_look(left, !all_ended_, now);
  carry_out(step);
  if (!unsure) {
    for (auto& [rank, owner] : owners_) {
      if (!owner.ended || owner.clean || has_left.count(rank) != 0) continue;
      owner.clean = true;
      options_.on_clean(LocalRank(rank));
    }
    if (all_ended_ && step.done) return finish();
  }
  if (all_ended_) say_what_is_waited_for();
  if (!is_busy()) return;
  // What is waited for without a limit is looked at now and then; a child's end is told at once.
  const bool in_hurry = all_ended_ && (plan_.policy() == Leftovers::end || plan_.hurried());
  const milliseconds longest = in_hurry ? kLongInterval : kIdleInterval;
  TimePoint next = now + (unsure ? milliseconds(1) : interval_);
  interval_ = std::min(interval_ * 2, longest);
  if (step.deadline) next = std::min(next, *step.deadline);
  wait_until(next);
}

void Sweeper::finish() {
  if (options_.policy == Leftovers::keep && !plan_.hurried()) {
    std::vector<std::string> names;
    for (const Found& found : found_) names.push_back(name(found));
    if (!names.empty()) log_info("left running (--leftovers=keep): {}", fmt::join(names, ", "));
    cgroup_.let_go();
  } else {
    cgroup_.kill_all();  // for what forks faster than we look
  }
  swept_ = true;
  timer_.cancel();
  for (auto& [rank, owner] : owners_) {
    if (!std::exchange(owner.clean, true)) options_.on_clean(LocalRank(rank));
  }
  options_.on_swept();
}

std::string Sweeper::name(const Found& found) { return fmt::format("pid {} ({})", found.leftover.pid, found.command); }

void Sweeper::carry_out(const LeftoverPlan::Step& step) {
  std::map<int, std::vector<std::string>> told;
  std::vector<std::string> killed_with_worker, stuck;
  bool can_wait = false;
  for (const Found& found : found_) {
    const Leftover& left = found.leftover;
    if (std::find(step.stuck.begin(), step.stuck.end(), left.pid) != step.stuck.end()) stuck.push_back(name(found));
    for (const auto& order : step.orders) {
      if (order.pid != left.pid) continue;
      const bool with_worker =
          order.signal == SIGKILL && options_.policy != Leftovers::wait && (left.no_patience || plan_.hurried());
      // What a stop signal ends could not have been waited for either.
      can_wait = can_wait || (order.signal == SIGTERM && left.unheard_signal == 0 && options_.policy == Leftovers::end);
      (with_worker ? killed_with_worker : told[order.signal]).push_back(name(found));
      signal_if_same(options_.proc_root, order.pid, order.start_time, order.signal);
      // One that is stopped could not hear it.
      if (order.signal != SIGKILL) signal_if_same(options_.proc_root, order.pid, order.start_time, SIGCONT);
    }
  }
  for (const auto& [signal, names] : told) {
    log_warning("left by a worker that has ended, {} {}: {}{}", signal == SIGKILL ? "killed with" : "gets",
                signal_name(signal), fmt::join(names, ", "),
                signal == SIGTERM && can_wait ? " (--leftovers=wait lets them finish)" : "");
  }
  if (!killed_with_worker.empty()) log_info("killed with their worker: {}", fmt::join(killed_with_worker, ", "));
  if (!stuck.empty()) log_error("does not take SIGKILL (stuck in the kernel), left behind: {}", fmt::join(stuck, ", "));
}

void Sweeper::say_what_is_waited_for() {
  if (plan_.policy() != Leftovers::wait || said_ || found_.empty() || plan_.hurried()) return;
  if (SteadyClock::now() < last_end_ + options_.times.leave) return;
  said_ = true;
  std::vector<std::string> names;
  for (const Found& found : found_) names.push_back(name(found));
  log_info("the workers have ended; waiting for what they started (--leftovers=wait; a stop signal ends it): {}",
           fmt::join(names, ", "));
}

void Sweeper::end_now(milliseconds limit) {
  const TimePoint end = SteadyClock::now() + limit;
  walk_.reset();
  all_ended_ = true;
  std::set<pid_t> told;
  for (int quiet = 0; quiet < 2 && SteadyClock::now() < end;) {
    found_.clear();
    saw_zombie_ = false;
    ProcessWalk walk = make_walk();
    while (!walk.step(kStep) && SteadyClock::now() < end) {
    }
    for (const auto& [pid, stat] : walk.take()) {
      if (stat.is_dead() && stat.parent == ::getpid() && !options_.is_guard(pid)) ::waitpid(pid, nullptr, WNOHANG);
      examine(pid, stat);
    }
    for (const Found& found : found_) {
      if (found.leftover.tracker || !told.insert(found.leftover.pid).second) continue;
      signal_if_same(options_.proc_root, found.leftover.pid, found.leftover.start_time, SIGKILL);
    }
    quiet = found_.empty() ? quiet + 1 : 0;
    if (!found_.empty() || saw_zombie_) std::this_thread::sleep_for(milliseconds(1));
  }
  cgroup_.kill_all();
  found_.clear();
  all_ended_ = false;
}

}  // namespace ddprun::launcher
