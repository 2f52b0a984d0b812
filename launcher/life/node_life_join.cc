#include <fmt/format.h>

#include <algorithm>

#include "common/exit_code.h"
#include "common/signal_names.h"
#include "launcher/life/node_life.h"
#include "launcher/life/node_words.h"

// Joining: until there is a place in a round. Starting: until its workers run.
namespace ddprun::launcher {

using std::chrono::milliseconds;

namespace {

// Pause before the workers of attempt `restart_count` start: `step`, doubled for each more, at most 60 s.
milliseconds backoff_before(std::int64_t restart_count, milliseconds step) {
  constexpr milliseconds kMost = std::chrono::seconds(60);
  if (restart_count <= 0) return milliseconds(0);
  milliseconds pause = std::min(step, kMost);
  for (std::int64_t i = 1; i < restart_count && pause.count() > 0 && pause < kMost; ++i)
    pause = std::min(pause * 2, kMost);
  return pause;
}

// What no rendezvous of ours sends; "" = nothing.
std::string what_is_wrong(const rdzv::Assignment& a, const NodeOptions& options) {
  if (a.restart_count > options.job.max_restarts) {
    return fmt::format("it counts restart {} where {} are allowed", a.restart_count, options.job.max_restarts);
  }
  if (a.first_rank.value + options.nproc > a.world_size) {
    return fmt::format("it gives ranks {}..{} in a world of {}", a.first_rank.value,
                       a.first_rank.value + options.nproc - 1, a.world_size);
  }
  if (a.group_rank.value >= a.group_world_size) {
    return fmt::format("it makes this node {} of {}", a.group_rank.value, a.group_world_size);
  }
  return "";
}

}  // namespace

// --- joining ------------------------------------------------------------------------------------------------------

void NodeLife::join(Round last_round, TimePoint now) {
  if (!hopeless_.empty()) {
    end(outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable, "rendezvous: " + hopeless_));
    return;
  }
  last_round_ = last_round;
  Joining joining;
  joining.since = now;
  phase_ = joining;
  emit(BindAndJoin{last_round, false});
}

void NodeLife::on_joining(Joining& joining, const NodeEvent& event, TimePoint now) {
  if (const auto* failed = std::get_if<JoinFailed>(&event)) {
    const std::string why = "the port for the workers' store cannot be had: " + failed->why;
    emit(TellLeave{why});
    end(outcome_of(JobOutcome::Kind::cannot_start, exit_code::kFailure, why));
  } else if (const auto* stop = std::get_if<StopRequest>(&event)) {
    emit(TellLeave{"it was stopped with " + signal_name(stop->signal)});
    end(signalled_outcome(stop->signal));
  } else if (const auto* hopeless = std::get_if<Hopeless>(&event)) {
    end(outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable, "rendezvous: " + hopeless->why));
  } else if (const auto* message = std::get_if<rdzv::ServerMessage>(&event)) {
    on_joining(joining, *message, now);
  }
}

void NodeLife::on_joining(Joining& joining, const rdzv::ServerMessage& message, TimePoint now) {
  if (const auto* assignment = std::get_if<rdzv::Assignment>(&message)) {
    if (assignment->round > last_round_) accept(joining, *assignment, now);
  } else if (const auto* finished = std::get_if<rdzv::Finished>(&message)) {
    if (!started_before_ && finished->result == rdzv::DoneResult::success) {
      say(Say::Tone::warning,
          fmt::format("the job of run id '{}' ended well without this node: it was a spare and never started a worker",
                      options_.run_id.value));
      end(JobOutcome());
      return;
    }
    end(ended_well(finished->result, started_before_ ? "on all nodes" : "as a spare"));
  } else if (const auto* shutdown = std::get_if<rdzv::Shutdown>(&message)) {
    end(shutdown_outcome(*shutdown));
  } else if (const auto* refusal = std::get_if<rdzv::Refused>(&message)) {
    const std::string why = "the rendezvous refused: " + refusal->reason;
    if (!refusal->retry) {
      end(outcome_of(JobOutcome::Kind::unavailable, exit_code::kUsage, why));
      return;
    }
    if (!std::exchange(joining.said_refused, true)) {
      say(Say::Tone::warning, "the rendezvous refused, trying again: " + refusal->reason);
    }
    joining.refused = why;
    joining.again_at = now + kRefusedRetry;
  }
}

void NodeLife::accept(const Joining& joining, const rdzv::Assignment& a, TimePoint now) {
  if (const std::string wrong = what_is_wrong(a, options_); !wrong.empty()) {
    const std::string why =
        fmt::format("the rendezvous at {} cannot be right: {}. Is every node and the daemon of the same version?",
                    options_.endpoint.to_string(), wrong);
    emit(TellLeave{why});
    end(outcome_of(JobOutcome::Kind::unavailable, exit_code::kUnavailable, why));
    return;
  }
  say(Say::Tone::info,
      fmt::format("rendezvous complete round={} group_rank={} group_world_size={} world_size={} restart_count={} "
                  "took_ms={}",
                  a.round.value, a.group_rank.value, a.group_world_size, a.world_size, a.restart_count,
                  std::chrono::duration_cast<milliseconds>(now - joining.since).count()));
  phase_ = Starting{Attempt(a, options_.nproc), Starting::Step::accepting, now + kStartLimit};
  emit(AcceptRound{a});
}

void NodeLife::tick_joining(Joining& joining, TimePoint now) {
  if (joining.again_at && now >= *joining.again_at && now < joining.since + options_.job.join_timeout) {
    joining.again_at.reset();
    joining.refused.clear();  // what counts is the next answer
    emit(BindAndJoin{last_round_, true});
    return;
  }
  if (!joining.refused.empty()) {
    end(outcome_of(JobOutcome::Kind::unavailable, exit_code::kUsage, joining.refused));
  } else {
    end(unreachable());
  }
}

// --- starting -----------------------------------------------------------------------------------------------------

void NodeLife::on_starting(Starting& starting, const NodeEvent& event, TimePoint now) {
  const Round round = starting.attempt.assignment.round;
  if (const auto* accepted = std::get_if<RoundAccepted>(&event)) {
    if (starting.step != Starting::Step::accepting || accepted->round != round) return;
    const std::int64_t restart_count = starting.attempt.assignment.restart_count;
    const milliseconds pause =
        started_before_ ? backoff_before(restart_count, options_.restart_backoff) : milliseconds(0);
    if (pause.count() == 0) return start(starting, now);
    say(Say::Tone::info, fmt::format("waiting before the next attempt wait_ms={}", pause.count()));
    starting.step = Starting::Step::pausing;
    starting.deadline = now + pause;
  } else if (const auto* they_run = std::get_if<WorkersStarted>(&event)) {
    if (starting.step != Starting::Step::starting || they_run->round != round) return;
    const rdzv::Assignment& a = starting.attempt.assignment;
    say(Say::Tone::info,
        fmt::format("started {} {} ranks={}..{} of {}", options_.nproc, options_.nproc == 1 ? "worker" : "workers",
                    a.first_rank.value, a.first_rank.value + options_.nproc - 1, a.world_size));
    run(starting, now);
  } else if (const auto* failed = std::get_if<StartFailed>(&event)) {
    if (starting.step != Starting::Step::pausing && failed->round == round)
      start_failed(std::move(starting.attempt), *failed, now);
  } else if (starting.step == Starting::Step::starting) {
    while_starting(starting, event, now);
  } else if (const auto* request = std::get_if<StopRequest>(&event)) {
    emit(TellLeave{"it was stopped with " + signal_name(request->signal)});
    end(signalled_outcome(request->signal));
  } else if (std::holds_alternative<LeaseOver>(event)) {
    if (options_.on_silence == OnSilence::keep) return;
    if (hopeless_.empty()) {
      say(Say::Tone::warning, "the rendezvous is silent, this node may be cut off: joining again");
    }
    conclude(std::move(starting.attempt), Again(), now);
  } else if (const auto* message = std::get_if<rdzv::ServerMessage>(&event)) {
    if (auto decided = decided_by(*message, starting.attempt)) {
      conclude(std::move(starting.attempt), std::move(*decided->verdict), now);
    }
  }
}

// The answer to StartWorkers is still to come, so workers may live: what would stop them if they ran, does.
void NodeLife::while_starting(Starting& starting, const NodeEvent& event, TimePoint now) {
  if (const auto* message = std::get_if<rdzv::ServerMessage>(&event)) {
    auto decided = decided_by(*message, starting.attempt);
    if (!decided) return;
    decided->patience = options_.shutdown_timeout;
    run(starting, now);
    begin_stop(std::move(std::get<Running>(phase_).attempt), std::move(*decided), now);
    return;
  }
  const bool lease_over = std::holds_alternative<LeaseOver>(event) && options_.on_silence == OnSilence::stop;
  if (!lease_over && !std::holds_alternative<StopRequest>(event) && !std::holds_alternative<WorkerEnded>(event)) return;
  run(starting, now);
  on_running(std::get<Running>(phase_), event, now);
}

void NodeLife::start(Starting& starting, TimePoint now) {
  starting.step = Starting::Step::starting;
  starting.deadline = now + kStartLimit;
  emit(StartWorkers{starting.attempt.assignment, starting.attempt.tally.running()});
}

void NodeLife::run(Starting& starting, TimePoint now) {
  Running running{std::move(starting.attempt), std::nullopt, std::nullopt, false};
  running.attempt.started_at = now;
  started_before_ = true;
  phase_ = std::move(running);
}

void NodeLife::start_failed(Attempt attempt, const StartFailed& failed, TimePoint now) {
  started_before_ = true;  // an attempt all the same: the next one has its pause
  OwnFailure failure;
  failure.record = blank_record(attempt);
  failure.record.message = fmt::format("{} cannot start its workers: {}", host_, failed.why);
  failure.record.exit_code = failed.exit_code;
  failure.permanent = failed.permanent;
  failure.at = now;
  attempt.failure = std::move(failure);
  attempt.told_at = now;
  say(Say::Tone::warning, "cannot start the workers: " + failed.why);
  tell_failure(attempt);
  phase_ = Waiting{std::move(attempt)};
}

void NodeLife::tick_starting(Starting& starting, TimePoint now) {
  switch (starting.step) {
    case Starting::Step::pausing:
      return start(starting, now);
    case Starting::Step::accepting: {
      StartFailed late;
      late.why = fmt::format("the workers' store was not ready within {} s", kStartLimit.count());
      late.exit_code = exit_code::kFailure;
      return start_failed(std::move(starting.attempt), late, now);
    }
    case Starting::Step::starting:
      break;
  }
  // Nobody knows which of them run: end them all.
  run(starting, now);
  say(Say::Tone::error, fmt::format("the workers did not start within {} s", kStartLimit.count()));
  Stop stop;
  stop.signal = kSigTerm;
  stop.verdict = outcome_of(JobOutcome::Kind::cannot_start, exit_code::kFailure,
                            fmt::format("the workers did not start within {} s", kStartLimit.count()));
  begin_stop(std::move(std::get<Running>(phase_).attempt), std::move(stop), now);
}

}  // namespace ddprun::launcher
