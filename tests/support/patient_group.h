#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "launcher/process/worker_group.h"

namespace ddprun::launcher {

// A worker group for coroutines, with patience.
class PatientGroup : public WorkerGroupListener {
 public:
  PatientGroup(boost::asio::io_context& io, WorkerGroupOptions options)
      : io_(io), group_(std::make_unique<WorkerGroup>(io, std::move(options))) {
    group_->add_listener(this);
  }
  WorkerGroup& group() { return *group_; }
  const WorkerGroup& group() const { return *group_; }

  Result<void> start(std::vector<WorkerSpec> workers) {
    unreported_ = 0;
    drained_ = false;
    stop_limit_ = TimePoint::max();
    auto started = group_->start(std::move(workers));
    if (!started) group_->drain();
    return started;
  }
  // The next worker that ended; cancelled when none is left.
  boost::asio::awaitable<Result<WorkerExit>> next_exit() {
    while (true) {
      if (unreported_ < group_->exits().size()) co_return group_->exits()[unreported_++];
      if (!group_->running()) co_return Error(Errc::cancelled, "no worker is left");
      co_await wait_until(TimePoint::max());
    }
  }
  // Asks all, waits up to `patience`, kills; returns when they have been drained.
  boost::asio::awaitable<void> stop(int signal, std::chrono::milliseconds patience) {
    const TimePoint begin = SteadyClock::now();
    if (stop_limit_ != TimePoint::max() && patience.count() == 0) group_->hurry();
    stop_limit_ = std::min(stop_limit_, begin + patience);
    const auto ranks = local_ranks();
    for (const LocalRank rank : ranks) group_->ask_to_stop(rank, signal, SignalScope::worker);
    group_->drain();
    wake();
    const TimePoint half = begin + patience / 2;
    bool group_told = false;
    while (!drained_) {
      const TimePoint now = SteadyClock::now();
      if (now >= stop_limit_) {
        for (const LocalRank rank : ranks) group_->kill(rank);
        co_await wait_until(TimePoint::max());
        continue;
      }
      if (now >= half && !std::exchange(group_told, true)) {
        for (const LocalRank rank : ranks) group_->ask_to_stop(rank, signal, SignalScope::group);
      }
      const TimePoint limit = group_told ? stop_limit_ : std::min(stop_limit_, half);
      co_await wait_until(limit);
    }
  }

 private:
  void on_start(const WorkerEnv& worker, pid_t) override { ranks_.push_back(worker.local_rank); }
  void on_exit(const WorkerEnv& worker, const WorkerExit&) override {
    std::erase(ranks_, worker.local_rank);
    wake();
  }
  void on_drained() override {
    drained_ = true;
    wake();
  }
  std::vector<LocalRank> local_ranks() const { return ranks_; }
  void wake() {
    for (auto* timer : waiting_) timer->cancel();
  }
  boost::asio::awaitable<void> wait_until(TimePoint limit) {
    boost::asio::steady_timer timer(io_);
    timer.expires_at(limit);
    waiting_.push_back(&timer);
    constexpr auto as_tuple = boost::asio::as_tuple(boost::asio::use_awaitable);
    co_await timer.async_wait(as_tuple);
    std::erase(waiting_, &timer);
  }

  boost::asio::io_context& io_;
  std::vector<LocalRank> ranks_;
  std::vector<boost::asio::steady_timer*> waiting_;
  std::size_t unreported_ = 0;
  bool drained_ = true;
  TimePoint stop_limit_ = TimePoint::max();
  std::unique_ptr<WorkerGroup> group_;
};

}  // namespace ddprun::launcher
