#include "launcher/job/flight.h"

#include <utility>

#include "common/clock.h"

namespace ddprun::launcher {
namespace {

std::int64_t now_ns() { return SteadyClock::now().time_since_epoch().count(); }

}  // namespace

void FlightObserver::on_round(const RankSlice&, std::chrono::milliseconds) {
  seen_failure_ = false;
  verdict_.clear();
}

void FlightObserver::on_exit(const WorkerEnv&, const WorkerExit& exit) {
  const bool failed = !exit.status.success();
  if (!failed || exit.stopped_by_us || std::exchange(seen_failure_, true)) return;
  verdict_ = flight_verdict(read(), now_ns());
}

void FlightObserver::on_end(const JobOutcome&) { group_ = nullptr; }

std::string FlightObserver::pack(std::size_t max_bytes) const { return pack_flight(read(), max_bytes, now_ns()); }

std::vector<FlightLog> FlightObserver::read() const {
  std::vector<FlightLog> logs;
  for (std::int64_t i = 0; group_ != nullptr && i < workers_; ++i) {
    const int fd = group_->recorder_fd(LocalRank(i));
    if (fd < 0) continue;
    auto log = read_flight_recorder(fd);
    if (log) logs.push_back(std::move(log).value());  // else: a worker that has none of our collectives
  }
  return logs;
}

}  // namespace ddprun::launcher
