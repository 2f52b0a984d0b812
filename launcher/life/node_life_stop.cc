#include <fmt/format.h>

#include <algorithm>

#include "common/exit_code.h"
#include "common/signal_names.h"
#include "launcher/life/node_life.h"
#include "launcher/life/node_words.h"

// Stopping: until nothing of the attempt is left. Waiting: until the rendezvous says what that means.
namespace ddprun::launcher {

using std::chrono::milliseconds;

std::optional<NodeLife::Stop> NodeLife::decided_by(const rdzv::ServerMessage& message, const Attempt& attempt) {
  Stop stop;
  stop.signal = kSigTerm;
  if (const auto* restart = std::get_if<rdzv::Restart>(&message)) {
    if (restart->round != attempt.assignment.round) return std::nullopt;
    say(Say::Tone::info, fmt::format("round {} ends: {}", restart->round.value, restart->reason));
    stop.verdict = Again();
  } else if (const auto* finished = std::get_if<rdzv::Finished>(&message)) {
    stop.verdict = ended_well(finished->result, "on all nodes");
  } else if (const auto* shutdown = std::get_if<rdzv::Shutdown>(&message)) {
    const bool failure = shutdown->cause == rdzv::ShutdownCause::worker_failure;
    if (!attempt.failure) {
      const std::string what = failure ? "the job failed: " + shutdown->reason : shutdown->reason;
      say(Say::Tone::warning,
          attempt.tally.all_ended() || !attempt.started_at ? what : what + ": stopping the workers of this node");
    }
    stop.operators_wish =
        shutdown->cause == rdzv::ShutdownCause::stopped || shutdown->cause == rdzv::ShutdownCause::drained;
    stop.verdict = shutdown_outcome(*shutdown);
  } else if (const auto* refused = std::get_if<rdzv::Refused>(&message)) {
    const std::string why = "the rendezvous refused: " + refused->reason;
    say(Say::Tone::error, why);
    stop.verdict = outcome_of(JobOutcome::Kind::unavailable, exit_code::kUsage, why);
  } else {
    return std::nullopt;
  }
  return stop;
}

// --- stopping -----------------------------------------------------------------------------------------------------

void NodeLife::begin_stop(Attempt attempt, Stop stop, TimePoint now) {
  Stopping stopping{std::move(attempt),      Stopping::Step::asked,   stop.signal,      now + stop.patience,
                    now + stop.patience / 2, std::move(stop.verdict), stop.stop_signal, stop.operators_wish};
  const std::vector<LocalRank> running = stopping.attempt.tally.running();
  if (running.empty()) {
    all_ended(stopping, now);
  } else if (stop.patience.count() > 0) {
    const SignalScope scope = options_.signal_groups ? SignalScope::group : SignalScope::worker;
    for (const LocalRank worker : running) emit(AskToStop{worker, stop.signal, scope});
    if (options_.signal_groups) {
      stopping.step = Stopping::Step::group_asked;
      stopping.deadline = stopping.kill_at;
    }
  } else {
    kill_rest(stopping, now);
  }
  emit(DrainWorkers());
  if (options_.wait_for_helpers && !helpers_may_stay(stopping))
    emit(EndHelpers{stopping.stop_signal != 0 ? kSigTerm : 0});
  phase_ = std::move(stopping);
}

void NodeLife::kill_rest(Stopping& stopping, TimePoint now) {
  stopping.step = Stopping::Step::killed;
  stopping.deadline = now + kKillLimit;
  for (const LocalRank worker : stopping.attempt.tally.running()) emit(Kill{worker});
}

void NodeLife::all_ended(Stopping& stopping, TimePoint now) {
  if (stopping.step == Stopping::Step::hurried) return;
  stopping.step = Stopping::Step::draining;
  stopping.deadline.reset();
  limit_drain(stopping, now);
}

// Helpers of a job that is done may take their time if the user wants that; all others hold up somebody.
void NodeLife::limit_drain(Stopping& stopping, TimePoint now) {
  if (stopping.step != Stopping::Step::draining || stopping.deadline || helpers_may_stay(stopping)) return;
  stopping.deadline = now + drain_limit();
}

bool NodeLife::helpers_may_stay(const Stopping& stopping) const {
  if (!options_.wait_for_helpers || !stopping.attempt.done || stopping.stop_signal != 0) return false;
  if (!stopping.verdict) return true;
  const auto* outcome = std::get_if<JobOutcome>(&*stopping.verdict);
  return outcome != nullptr &&
         (outcome->kind == JobOutcome::Kind::success || outcome->kind == JobOutcome::Kind::resume_me);
}

void NodeLife::tell_done(Attempt& attempt, TimePoint now) {
  attempt.told_done = true;
  attempt.told_at = now;
  emit(TellDone{*attempt.done});
}

void NodeLife::on_stopping(Stopping& stopping, const NodeEvent& event, TimePoint now) {
  const Round round = stopping.attempt.assignment.round;
  if (const auto* ended = std::get_if<WorkerEnded>(&event)) {
    if (ended->round != round || !stopping.attempt.tally.runs(ended->end.worker)) return;
    stopping.attempt.tally.on(ended->end);
    if (stopping.attempt.tally.all_ended()) all_ended(stopping, now);
  } else if (const auto* nothing_left = std::get_if<WorkersDrained>(&event)) {
    if (nothing_left->round == round) drained(stopping, now);
  } else if (const auto* failed = std::get_if<StartFailed>(&event)) {
    // The start that was under way when we were told to stop: there is nobody to be stopped.
    if (failed->round != round) return;
    say(Say::Tone::warning, "cannot start the workers: " + failed->why);
    drained(stopping, now);
  } else if (std::holds_alternative<LeaseOver>(event)) {
    lease_over(stopping, now);
  } else if (const auto* request = std::get_if<StopRequest>(&event)) {
    stop_again(stopping, request->signal, now);
  } else if (const auto* hopeless = std::get_if<Hopeless>(&event)) {
    say(Say::Tone::error, "the rendezvous cannot be talked to any more: " + hopeless->why);
  } else if (const auto* message = std::get_if<rdzv::ServerMessage>(&event)) {
    on_stopping(stopping, *message, now);
  }
}

void NodeLife::on_stopping(Stopping& stopping, const rdzv::ServerMessage& message, TimePoint now) {
  if (stopping.stop_signal != 0) return;  // we go, whatever becomes of the job
  const bool decided = stopping.verdict.has_value();
  if (decided && std::holds_alternative<JobOutcome>(*stopping.verdict)) return;
  // The next round is wanted already; only the end of the job is more than that.
  const bool end = std::holds_alternative<rdzv::Finished>(message) || std::holds_alternative<rdzv::Shutdown>(message);
  if (decided && !end) return;
  const bool stayed = helpers_may_stay(stopping);
  auto stop = decided_by(message, stopping.attempt);
  if (!stop) return;
  stopping.verdict = std::move(stop->verdict);
  stopping.operators_wish = stop->operators_wish;
  if (stayed) stop_waiting(stopping, stop->operators_wish ? kSigTerm : 0, now);
}

// What has just happened may have made an end of --leftovers=wait.
void NodeLife::stop_waiting(Stopping& stopping, int signal, TimePoint now) {
  if (helpers_may_stay(stopping)) return;
  emit(EndHelpers{signal});
  limit_drain(stopping, now);
}

// Whatever they were promised, they must be dead before others may take their place.
void NodeLife::lease_over(Stopping& stopping, TimePoint now) {
  if (options_.on_silence == OnSilence::keep) return;
  const milliseconds patience = std::min(options_.shutdown_timeout, kSilencePatience);
  const bool asked = stopping.step == Stopping::Step::asked || stopping.step == Stopping::Step::group_asked;
  if (asked && now + patience < stopping.kill_at) {
    say(Say::Tone::warning, fmt::format("the rendezvous is silent, this node may be cut off: its workers must end "
                                        "within {} ms",
                                        patience.count()));
    stopping.kill_at = now + patience;
    stopping.deadline = std::min(*stopping.deadline, stopping.kill_at);
  }
  if (stopping.verdict || stopping.attempt.done || stopping.stop_signal != 0) return;
  stopping.verdict = Again();
}

// The first signal of this stop changes no patience: whoever sends it need not know that they are being stopped
// already.
void NodeLife::stop_again(Stopping& stopping, int signal, TimePoint now) {
  if (stopping.stop_signal == 0) {
    const bool stayed = helpers_may_stay(stopping);
    stopping.stop_signal = signal;
    const bool ends_anyhow = stopping.verdict && std::holds_alternative<JobOutcome>(*stopping.verdict);
    if (!ends_anyhow) emit(TellLeave{"it was stopped with " + signal_name(signal)});
    if (signal != stopping.signal) {
      const SignalScope scope = options_.signal_groups ? SignalScope::group : SignalScope::worker;
      for (const LocalRank worker : stopping.attempt.tally.running()) emit(AskToStop{worker, signal, scope});
    }
    if (stayed) stop_waiting(stopping, kSigTerm, now);  // a shell's background ignores SIGINT
    return;
  }
  if (stopping.step == Stopping::Step::hurried) return;
  if (stopping.attempt.tally.all_ended()) return hurry(stopping, now);
  if (stopping.step != Stopping::Step::killed) kill_rest(stopping, now);
  emit(HurryDrain());
}

void NodeLife::hurry(Stopping& stopping, TimePoint now) {
  emit(HurryDrain());
  stopping.step = Stopping::Step::hurried;
  stopping.deadline = now + kHurryLimit;
}

void NodeLife::tick_stopping(Stopping& stopping, TimePoint now) {
  const auto rest = [&] {
    return ranks_text(stopping.attempt.tally.running(), stopping.attempt.assignment.first_rank);
  };
  switch (stopping.step) {
    case Stopping::Step::asked:
      for (const LocalRank worker : stopping.attempt.tally.running()) {
        emit(AskToStop{worker, stopping.signal, SignalScope::group});
      }
      stopping.step = Stopping::Step::group_asked;
      stopping.deadline = stopping.kill_at;
      return;
    case Stopping::Step::group_asked:
      say(Say::Tone::warning,
          fmt::format("{} did not end in time after {}: killed", rest(), signal_name(stopping.signal)));
      return kill_rest(stopping, now);
    case Stopping::Step::killed:
      say(Say::Tone::error, fmt::format("{} did not end {} s after SIGKILL (stuck in the kernel): left behind", rest(),
                                        kKillLimit.count()));
      break;
    case Stopping::Step::draining:
      say(Say::Tone::warning,
          fmt::format("the workers have ended, but not their helpers or their output, for {} s: no more patience",
                      std::chrono::duration_cast<std::chrono::seconds>(drain_limit()).count()));
      break;
    case Stopping::Step::hurried:
      say(Say::Tone::error, "something of the workers cannot be ended: it is left behind");
      return drained(stopping, now);
  }
  hurry(stopping, now);
}

// Nothing of the attempt is left.
void NodeLife::drained(Stopping& stopping, TimePoint now) {
  Attempt attempt = std::move(stopping.attempt);
  std::optional<Verdict> verdict = std::move(stopping.verdict);
  const bool saved = attempt.tally.all_saved();
  JobOutcome* outcome = verdict ? std::get_if<JobOutcome>(&*verdict) : nullptr;
  if (stopping.operators_wish && outcome != nullptr) {
    // Never 75: nobody is to start again at once what an operator has stopped.
    if (saved) {
      outcome->reason += "; its workers saved their state and ended with 75: started again, the job goes on from there";
    }
  } else if (stopping.stop_signal != 0) {
    // A failure that came first keeps its reason, unless the workers saved and ended with 75.
    if (saved) {
      verdict = ended_well(rdzv::DoneResult::resume_me, "on this node");
    } else if (outcome == nullptr) {
      verdict = signalled_outcome(stopping.stop_signal);
    }
  } else if (!verdict) {
    if (attempt.done && !attempt.told_done) tell_done(attempt, now);
    if (attempt.failure) tell_failure(attempt);  // its evidence is complete now
    phase_ = Waiting{std::move(attempt)};
    return;
  }
  conclude(std::move(attempt), std::move(*verdict), now);
}

void NodeLife::conclude(Attempt attempt, Verdict verdict, TimePoint now) {
  if (auto* outcome = std::get_if<JobOutcome>(&verdict)) {
    if (outcome->kind != JobOutcome::Kind::success) outcome->notes = std::move(attempt.notes);
    end(std::move(*outcome));
    return;
  }
  join(attempt.assignment.round, now);
}

// --- waiting ------------------------------------------------------------------------------------------------------

void NodeLife::on_waiting(Waiting& waiting, const NodeEvent& event, TimePoint now) {
  Attempt& attempt = waiting.attempt;
  if (const auto* request = std::get_if<StopRequest>(&event)) {
    emit(TellLeave{"it was stopped with " + signal_name(request->signal)});
    Verdict verdict = signalled_outcome(request->signal);
    if (attempt.tally.all_saved()) verdict = ended_well(rdzv::DoneResult::resume_me, "on this node");
    conclude(std::move(attempt), std::move(verdict), now);
  } else if (std::holds_alternative<LeaseOver>(event)) {
    if (attempt.done || options_.on_silence == OnSilence::keep) return;
    if (!hopeless_.empty()) return tick_waiting(waiting, now);  // there is nobody to join
    say(Say::Tone::warning, "the rendezvous is silent, this node may be cut off: joining again");
    conclude(std::move(attempt), Again(), now);
  } else if (const auto* hopeless = std::get_if<Hopeless>(&event)) {
    say(Say::Tone::error, "the rendezvous cannot be talked to any more: " + hopeless->why);
  } else if (const auto* message = std::get_if<rdzv::ServerMessage>(&event)) {
    if (auto decided = decided_by(*message, attempt)) conclude(std::move(attempt), std::move(*decided->verdict), now);
  }
}

// The rendezvous has been gone for too long.
void NodeLife::tick_waiting(Waiting& waiting, TimePoint now) {
  Attempt& attempt = waiting.attempt;
  if (attempt.done) {
    say(Say::Tone::warning,
        fmt::format("the rendezvous has been gone for {} s; the workers of this node are done, so it ends",
                    options_.job.close_timeout.count() / 1000.0));
    Verdict verdict = ended_well(*attempt.done, "on this node");
    conclude(std::move(attempt), std::move(verdict), now);
    return;
  }
  if (!attempt.failure) return conclude(std::move(attempt), unreachable(), now);
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::worker_failure;
  outcome.root_cause = attempt.failure->record;
  outcome.failures.push_back(attempt.failure->record);
  outcome.exit_code = exit_code_for(attempt.failure->record);
  conclude(std::move(attempt), std::move(outcome), now);
}

}  // namespace ddprun::launcher
