#include "launcher/life/node_life.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/exit_code.h"

// What all phases share: dispatch, deadlines, outcomes.
namespace ddprun::launcher {

using std::chrono::milliseconds;

namespace {

// A rendezvous that is connected answers heartbeats; this much more than its lease may pass between two of them.
constexpr milliseconds kBeatMargin{2'000};

}  // namespace

NodeLife::NodeLife(NodeOptions options, std::string host) : options_(std::move(options)), host_(std::move(host)) {}

NodeActions NodeLife::begin(TimePoint now) {
  link_.useless_since = now;
  link_.useful = now;
  link_.problem = "not tried yet";
  join(Round(0), now);
  return take();
}

NodeActions NodeLife::on(const NodeEvent& event, TimePoint now) {
  if (const auto* link = std::get_if<Link>(&event)) {
    link_ = *link;
    return take();
  }
  if (const auto* paused = std::get_if<Paused>(&event)) {
    resumed_at_ = now;
    shift(paused->gap);
    return take();
  }
  if (const auto* hopeless = std::get_if<Hopeless>(&event)) hopeless_ = hopeless->why;
  if (auto* joining = std::get_if<Joining>(&phase_)) {
    on_joining(*joining, event, now);
  } else if (auto* starting = std::get_if<Starting>(&phase_)) {
    on_starting(*starting, event, now);
  } else if (auto* running = std::get_if<Running>(&phase_)) {
    on_running(*running, event, now);
  } else if (auto* stopping = std::get_if<Stopping>(&phase_)) {
    on_stopping(*stopping, event, now);
  } else if (auto* waiting = std::get_if<Waiting>(&phase_)) {
    on_waiting(*waiting, event, now);
  }
  return take();
}

NodeActions NodeLife::tick(TimePoint now) {
  // One that leads to the next, e.g. the end of a patience that was 0. Each passes a deadline, so it ends.
  for (auto due = next_deadline(); due && *due <= now; due = next_deadline()) {
    if (auto* joining = std::get_if<Joining>(&phase_)) {
      tick_joining(*joining, now);
    } else if (auto* starting = std::get_if<Starting>(&phase_)) {
      tick_starting(*starting, now);
    } else if (auto* running = std::get_if<Running>(&phase_)) {
      tick_running(*running, now);
    } else if (auto* stopping = std::get_if<Stopping>(&phase_)) {
      tick_stopping(*stopping, now);
    } else if (auto* waiting = std::get_if<Waiting>(&phase_)) {
      tick_waiting(*waiting, now);
    }
  }
  return take();
}

std::optional<TimePoint> NodeLife::next_deadline() const {
  if (const auto* joining = std::get_if<Joining>(&phase_)) return deadline_of(*joining);
  if (const auto* starting = std::get_if<Starting>(&phase_)) return starting->deadline;
  if (const auto* running = std::get_if<Running>(&phase_)) return deadline_of(*running);
  if (const auto* stopping = std::get_if<Stopping>(&phase_)) return stopping->deadline;
  if (const auto* waiting = std::get_if<Waiting>(&phase_)) return deadline_of(*waiting);
  return std::nullopt;
}

std::string_view NodeLife::phase() const {
  constexpr std::string_view kNames[] = {"fresh", "joining", "starting", "running", "stopping", "waiting", "ended"};
  static_assert(std::size(kNames) == std::variant_size_v<Phase>);
  return kNames[phase_.index()];
}

bool NodeLife::workers_may_live() const {
  if (const auto* starting = std::get_if<Starting>(&phase_)) return starting->step == Starting::Step::starting;
  if (const auto* stopping = std::get_if<Stopping>(&phase_)) {
    return !(stopping->attempt.done && stopping->attempt.tally.all_ended());
  }
  return std::holds_alternative<Running>(phase_);
}

milliseconds NodeLife::stop_bound() const {
  return options_.shutdown_timeout + kKillLimit + drain_limit() + kHurryLimit;
}

milliseconds NodeLife::drain_limit() const {
  return std::max<milliseconds>(kDrainLimit, options_.shutdown_timeout + kDrainMargin);
}

// --- deadlines ----------------------------------------------------------------------------------------------------

// `limit` after `from`, or after the rendezvous was last of use. While a connection stands, its next sign of life may
// be a lease away.
TimePoint NodeLife::silent_until(TimePoint from, milliseconds limit) const {
  from = std::max(from, resumed_at_);  // while we did not run it could not have been of use
  if (link_.useless_since) return std::max(from, *link_.useless_since) + limit;
  const milliseconds lease = options_.job.lease();
  return std::max(from, link_.useful) + limit + lease + kBeatMargin;
}

std::optional<TimePoint> NodeLife::deadline_of(const Joining& joining) const {
  TimePoint due = silent_until(joining.since, options_.job.join_timeout);
  if (!joining.refused.empty()) due = std::min(due, joining.since + options_.job.join_timeout);
  if (joining.again_at) due = std::min(due, *joining.again_at);
  return due;
}

std::optional<TimePoint> NodeLife::deadline_of(const Running& running) const {
  std::optional<TimePoint> due;
  const auto also = [&due](TimePoint when) { due = due ? std::min(*due, when) : when; };
  if (running.follow_by) also(*running.follow_by);
  if (running.say_early_at) also(*running.say_early_at);
  // A standing daemon may come back when it likes; the place of a launcher that is lost is taken by nobody.
  if (link_.embedded && link_.useless_since) also(silent_until(*running.attempt.started_at, options_.job.join_timeout));
  return due;
}

std::optional<TimePoint> NodeLife::deadline_of(const Waiting& waiting) const {
  return silent_until(waiting.attempt.told_at,
                      waiting.attempt.done ? options_.job.close_timeout : options_.job.join_timeout);
}

// This process did not run: all that it was to wait for is later by as much.
void NodeLife::shift(Duration gap) {
  const auto move = [gap](std::optional<TimePoint>& time) {
    if (time) *time += gap;
  };
  if (auto* joining = std::get_if<Joining>(&phase_)) {
    joining->since += gap;
    move(joining->again_at);
  } else if (auto* starting = std::get_if<Starting>(&phase_)) {
    starting->deadline += gap;
  } else if (auto* running = std::get_if<Running>(&phase_)) {
    move(running->attempt.started_at);
    move(running->follow_by);
    move(running->say_early_at);
  } else if (auto* stopping = std::get_if<Stopping>(&phase_)) {
    stopping->kill_at += gap;
    stopping->attempt.told_at += gap;
    move(stopping->deadline);
  } else if (auto* waiting = std::get_if<Waiting>(&phase_)) {
    waiting->attempt.told_at += gap;
  }
}

// --- words and ends -----------------------------------------------------------------------------------------------

void NodeLife::say(Say::Tone tone, std::string text) { emit(Say{tone, std::move(text)}); }

void NodeLife::end(JobOutcome outcome) {
  phase_ = Ended();
  emit(End{std::move(outcome)});
}

JobOutcome NodeLife::unreachable() const {
  return outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable,
                    fmt::format("rendezvous timed out after {} s: nobody serves {}: {} (--rdzv-conf join_timeout)",
                                options_.job.join_timeout.count() / 1000.0, options_.endpoint.to_string(),
                                link_.problem.empty() ? "it is silent" : link_.problem));
}

JobOutcome NodeLife::ended_well(rdzv::DoneResult result, std::string_view how) {
  if (result == rdzv::DoneResult::success) {
    say(Say::Tone::info, fmt::format("the job ended well {}", how));
    return JobOutcome();
  }
  return outcome_of(JobOutcome::Kind::resume_me, exit_code::kResumeMe,
                    fmt::format("every worker{} ended with 75: state is saved, start the job again to resume",
                                how == "on this node" ? " of this node" : ""));
}

}  // namespace ddprun::launcher
