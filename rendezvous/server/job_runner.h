#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "rendezvous/server/job.h"
#include "rendezvous/server/state_file.h"
#include "rendezvous/server/state_writer.h"
#include "rendezvous/server/status.h"

namespace ddprun::rendezvous {

// All jobs of one rendezvous: does what their memberships decide, gives them the time, and keeps the state file.
class JobRunner : public std::enable_shared_from_this<JobRunner> {
 public:
  // `embedded`: in a launcher, which tells its own story.
  JobRunner(boost::asio::io_context& io, bool embedded);
  // `worlds`: that an earlier daemon knew. `state_file` may be null.
  void start(std::shared_ptr<const StateFile> state_file, const std::vector<KnownWorld>& worlds);

  static constexpr std::size_t kMostJobs = 4'096;
  // Made if there is none; nullptr: kMostJobs of them are in use.
  Job* job_of(const RunId& run_id);
  Jobs& jobs() { return jobs_; }
  void apply(Job& job, Actions actions, TimePoint now);
  void on_static_round(std::function<void()> hook) { static_hook_ = std::move(hook); }
  const ServerCounters& counters() const { return counters_; }

  void leave() { leaving_ = true; }  // nothing that happens means anything any more
  void close();

 private:
  static void deliver(Job& job, const Send& send);
  void forget_idle_jobs();
  void save(Job& job);
  bool on_disk(const Job& job) const;
  std::vector<KnownWorld> worlds() const;
  void tell_held();
  void arm();
  void look_for_stall();
  void beat();

  boost::asio::io_context& io_;
  const bool embedded_;
  Jobs jobs_;
  std::function<void()> static_hook_;
  ServerCounters counters_;
  boost::asio::steady_timer timer_, pulse_;
  std::optional<TimePoint> armed_;
  TimePoint last_pulse_;
  std::shared_ptr<StateWriter> state_;  // may be null
  bool leaving_ = false;                // only the last words go out
  bool closed_ = false;
};

}  // namespace ddprun::rendezvous
