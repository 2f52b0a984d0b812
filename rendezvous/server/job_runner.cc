#include "rendezvous/server/job_runner.h"

#include <utility>

#include "common/log.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kEventsKept = 100;
constexpr std::size_t kIdleJobsKept = 1'000;
constexpr std::chrono::seconds kPulse{1};  // how often we notice that we did not run
constexpr std::chrono::seconds kStall{2};  // a longer gap is our fault, not the agents'

}  // namespace

JobRunner::JobRunner(asio::io_context& io, bool embedded) : io_(io), embedded_(embedded), timer_(io), pulse_(io) {}

void JobRunner::start(std::shared_ptr<const StateFile> state_file, const std::vector<KnownWorld>& worlds) {
  if (state_file) {
    // Both are called only until close().
    state_ = std::make_shared<StateWriter>(
        io_, std::move(state_file), [this] { return this->worlds(); }, [this] { tell_held(); });
  }
  last_pulse_ = SteadyClock::now();
  for (const KnownWorld& world : worlds) {
    Job* const made = job_of(world.run_id);
    if (made == nullptr) break;  // a daemon before us kept to the same bound
    Job& job = *made;
    job.membership.expect(world, last_pulse_);
    job.known = world;
    job.last_change = last_pulse_;
  }
  arm();
  beat();
}

Job* JobRunner::job_of(const RunId& run_id) {
  auto found = jobs_.find(run_id);
  if (found == jobs_.end()) {
    forget_idle_jobs();
    if (jobs_.size() >= kMostJobs) return nullptr;
    found = jobs_.try_emplace(run_id, run_id).first;
  }
  return &found->second;
}

// Old names are kept for their round numbers: what belongs to an old round is refused. Not for ever.
void JobRunner::forget_idle_jobs() {
  while (jobs_.size() >= kIdleJobsKept) {
    auto oldest = jobs_.end();
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      if (!it->second.membership.empty()) continue;
      if (oldest == jobs_.end() || it->second.last_change < oldest->second.last_change) oldest = it;
    }
    if (oldest == jobs_.end()) return;
    jobs_.erase(oldest);
  }
}

void JobRunner::apply(Job& job, Actions actions, TimePoint now) {
  job.last_change = now;
  const Membership::Totals& totals = job.membership.totals();
  counters_.restarts += totals.restarts - job.counted.restarts;
  counters_.worker_failures += totals.failures - job.counted.failures;
  counters_.nodes_lost += totals.departed - job.counted.departed;
  job.counted = totals;
  save(job);
  const bool wait = !job.held.empty() || !on_disk(job);
  bool hooked = false;
  for (Action& action : actions) {
    if (auto* send = std::get_if<Send>(&action)) {
      if (auto* assignment = std::get_if<rdzv::Assignment>(&send->message)) {
        if (assignment->group_rank.value == 0) ++counters_.rounds;
        if (!hooked && static_hook_ && job.membership.backend() == RdzvBackend::static_ranks) static_hook_();
        hooked = true;
      } else if (auto* end = std::get_if<rdzv::Shutdown>(&send->message)) {
        if (end->cause == rdzv::ShutdownCause::too_few_nodes) ++counters_.expired;
      }
      if (wait) {
        job.held.push_back(std::move(*send));
      } else {
        deliver(job, *send);
      }
    } else if (auto* drop = std::get_if<Drop>(&action)) {
      const auto found = job.connections.find(drop->node);
      if (found == job.connections.end()) continue;
      const auto connection = found->second;
      job.connections.erase(found);
      connection->node_id = NodeId();
      connection->close(drop->why);
    } else if (auto* event = std::get_if<Event>(&action)) {
      // The launcher tells its own story; beside it the embedded server's is for debugging.
      if (embedded_) {
        log_debug("rendezvous: {} run_id={}", event->text, job.membership.run_id().value);
      } else {
        log_info("{} run_id={}", event->text, job.membership.run_id().value);
      }
      job.events.push_back(std::move(event->text));
      if (job.events.size() > kEventsKept) job.events.pop_front();
    }
  }
  arm();
}

void JobRunner::deliver(Job& job, const Send& send) {
  const auto found = job.connections.find(send.node);
  if (found != job.connections.end()) found->second->send(send.message);
}

// --- the state file: a new world is in it before its nodes hear of it, unless it cannot be written

void JobRunner::save(Job& job) {
  if (!state_) return;
  auto known = job.membership.known_world();
  if (known == job.known) return;
  job.known = std::move(known);
  const std::uint64_t change = state_->changed();
  if (job.known) job.change = change;  // of a world that is over nobody needs to know before its end is told
}

bool JobRunner::on_disk(const Job& job) const { return !state_ || state_->settled(job.change); }

std::vector<KnownWorld> JobRunner::worlds() const {
  std::vector<KnownWorld> all;
  for (const auto& [id, job] : jobs_) {
    if (job.known) all.push_back(*job.known);
  }
  return all;
}

void JobRunner::tell_held() {
  if (closed_ || leaving_) return;
  for (auto& [id, job] : jobs_) {
    if (job.held.empty() || !on_disk(job)) continue;
    for (const Send& send : std::exchange(job.held, {})) deliver(job, send);
  }
}

// --- time

void JobRunner::arm() {
  if (closed_) return;
  std::optional<TimePoint> next;
  for (const auto& [id, job] : jobs_) {
    const auto t = job.membership.next_deadline();
    if (t && (!next || *t < *next)) next = t;
  }
  if (next == armed_) return;
  armed_ = next;
  if (!next) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(*next);
  timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || self->closed_ || self->leaving_) return;
    self->armed_.reset();
    self->look_for_stall();
    const TimePoint now = SteadyClock::now();
    for (auto& [id, job] : self->jobs_) {
      const auto due = job.membership.next_deadline();
      if (due && *due <= now) self->apply(job, job.membership.tick(now), now);
    }
    self->arm();
  });
}

void JobRunner::look_for_stall() {
  const TimePoint now = SteadyClock::now();
  const Duration gap = now - last_pulse_;
  last_pulse_ = now;
  if (gap < kPulse + kStall) return;
  log_warning("this process did not run for {} ms: nobody's silence in that time counts",
              std::chrono::duration_cast<std::chrono::milliseconds>(gap).count());
  for (auto& [id, job] : jobs_) job.membership.forgive(gap);
  armed_.reset();
}

void JobRunner::beat() {
  pulse_.expires_after(kPulse);
  pulse_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || self->closed_) return;
    if (self->leaving_) return;
    self->look_for_stall();
    if (self->state_) self->state_->retry();
    self->arm();
    self->beat();
  });
}

void JobRunner::close() {
  if (closed_) return;
  closed_ = true;
  if (state_) state_->close();
  timer_.cancel();
  pulse_.cancel();
  for (auto& [id, job] : jobs_) job.connections.clear();
}

}  // namespace ddprun::rendezvous
