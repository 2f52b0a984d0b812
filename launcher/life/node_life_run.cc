#include <fmt/format.h>

#include <algorithm>

#include "common/exit_code.h"
#include "common/signal_names.h"
#include "launcher/life/node_life.h"
#include "launcher/life/node_words.h"

// Running: until a worker, the rendezvous or a signal ends the attempt.
namespace ddprun::launcher {

using std::chrono::milliseconds;

namespace {

// A worker that ends this much before the others had not just won a race.
constexpr milliseconds kEarly{1'000};
constexpr std::size_t kNotes = 8;

}  // namespace

void NodeLife::on_running(Running& running, const NodeEvent& event, TimePoint now) {
  if (const auto* ended = std::get_if<WorkerEnded>(&event)) {
    on_worker_ended(running, *ended, now);
  } else if (const auto* not_started = std::get_if<StartFailed>(&event)) {
    // Something came between the start and its answer.
    if (not_started->round == running.attempt.assignment.round) {
      start_failed(std::move(running.attempt), *not_started, now);
    }
  } else if (std::holds_alternative<LeaseOver>(event)) {
    if (options_.on_silence == OnSilence::keep) {
      say(Say::Tone::warning, "the rendezvous is silent: workers run on (--rdzv-conf on_silence=keep)");
      return;
    }
    say(Say::Tone::warning, std::string("the rendezvous is silent, this node may be cut off: stopping its workers") +
                                (hopeless_.empty() ? ", then joining again" : ""));
    Stop stop;
    stop.signal = kSigTerm;
    stop.patience = std::min(options_.shutdown_timeout, kSilencePatience);
    stop.verdict = Again();
    begin_stop(std::move(running.attempt), std::move(stop), now);
  } else if (const auto* request = std::get_if<StopRequest>(&event)) {
    emit(TellLeave{"it was stopped with " + signal_name(request->signal)});
    Stop stop;
    stop.signal = stop.stop_signal = request->signal;
    stop.patience = options_.shutdown_timeout;
    begin_stop(std::move(running.attempt), std::move(stop), now);
  } else if (const auto* hopeless = std::get_if<Hopeless>(&event)) {
    say(Say::Tone::error,
        fmt::format("the rendezvous cannot be talked to any more: {}. Workers run on {}", hopeless->why,
                    options_.on_silence == OnSilence::keep ? "to their end" : "until the lease is over"));
  } else if (const auto* message = std::get_if<rdzv::ServerMessage>(&event)) {
    if (auto stop = decided_by(*message, running.attempt)) {
      stop->patience = options_.shutdown_timeout;
      begin_stop(std::move(running.attempt), std::move(*stop), now);
    }
  }
}

void NodeLife::on_worker_ended(Running& running, const WorkerEnded& ended, TimePoint now) {
  Attempt& attempt = running.attempt;
  if (ended.round != attempt.assignment.round || !attempt.tally.runs(ended.end.worker)) return;
  WorkerEnd end = ended.end;
  end.asked = false;  // nobody has asked yet
  const WorkerTally::Verdict verdict = attempt.tally.on(end);
  // Were we stopped ourselves, the guard has killed them because the lease was over: that is no failure of theirs.
  if (ended.after_guard && end.signal == kSigKill) {
    say(Say::Tone::warning,
        "this process did not run for longer than the lease, so its guard killed the workers: joining again");
    Stop stop;
    stop.signal = kSigTerm;
    stop.verdict = Again();
    begin_stop(std::move(attempt), std::move(stop), now);
    return;
  }
  switch (verdict) {
    case WorkerTally::Verdict::carry_on:
      if (end.success()) {
        if (!running.said_early && !running.say_early_at) running.say_early_at = now + kSayEarly;
      } else if (!running.follow_by) {
        running.follow_by = now + options_.shutdown_timeout;
      }
      return;
    case WorkerTally::Verdict::finished:
    case WorkerTally::Verdict::resumable: {
      attempt.done =
          verdict == WorkerTally::Verdict::finished ? rdzv::DoneResult::success : rdzv::DoneResult::resume_me;
      // The job goes on as long as what its workers started, if that is waited for: an operator can still stop it.
      if (!options_.wait_for_helpers) tell_done(attempt, now);
      begin_stop(std::move(attempt), Stop(), now);  // their output comes out
      return;
    }
    case WorkerTally::Verdict::failed:
      break;
  }
  std::string note;
  if (attempt.tally.blamed()->code == exit_code::kResumeMe) {
    note = "some workers ended with 75 (state saved), others with 0: there is no state that all can resume from";
  }
  failed(running, now, std::move(note));
}

void NodeLife::failed(Running& running, TimePoint now, std::string note) {
  Attempt attempt = std::move(running.attempt);
  const WorkerEnd& cause = *attempt.tally.blamed();
  if (!note.empty()) {
    say(Say::Tone::warning, note);
    attempt.notes.push_back(std::move(note));
  }
  note_early_finishers(attempt, cause);
  OwnFailure failure;
  failure.record = blank_record(attempt);
  failure.record.local_rank = cause.worker;
  failure.record.rank = Rank(attempt.assignment.first_rank.value + cause.worker.value);
  failure.record.pid = cause.pid;
  failure.record.exit_code = cause.code;
  failure.record.signal = cause.signal;
  failure.record.unix_time = std::chrono::duration_cast<milliseconds>(cause.time.time_since_epoch());
  failure.permanent = cause.signal == 0 && cause.code == exit_code::kPermanent;
  failure.at = std::min(now, cause.at);
  say(Say::Tone::warning,
      fmt::format("{} pid={}: stopping the workers of this node", rdzv::describe(failure.record), cause.pid));
  attempt.failure = std::move(failure);
  attempt.told_at = now;
  tell_failure(attempt);
  Stop stop;
  stop.signal = kSigTerm;
  stop.patience = options_.shutdown_timeout;
  begin_stop(std::move(attempt), std::move(stop), now);
}

void NodeLife::tell_failure(const Attempt& attempt) {
  TellFailure tell;
  tell.record = attempt.failure->record;
  tell.permanent = attempt.failure->permanent;
  tell.quick = attempt.started_at && attempt.failure->at - *attempt.started_at <= options_.job.crash_loop_window;
  tell.at = attempt.failure->at;
  emit(std::move(tell));
}

FailureRecord NodeLife::blank_record(const Attempt& attempt) const {
  FailureRecord record;
  record.rank = attempt.assignment.first_rank;
  record.group_rank = attempt.assignment.group_rank;
  record.round = attempt.assignment.round;
  record.restart_count = attempt.assignment.restart_count;
  record.host = host_;
  return record;
}

void NodeLife::note_early_finishers(Attempt& attempt, const WorkerEnd& cause) const {
  std::size_t left_out = 0;
  for (const WorkerEnd* early : attempt.tally.early_finishers()) {
    if (cause.at - early->at < kEarly) continue;
    if (attempt.notes.size() >= kNotes) {
      ++left_out;
      continue;
    }
    attempt.notes.push_back(fmt::format("rank {} ended with 0 at {}, before the others",
                                        attempt.assignment.first_rank.value + early->worker.value,
                                        time_of_day(early->time)));
  }
  if (left_out > 0) attempt.notes.push_back(fmt::format("so did {} more", left_out));
}

void NodeLife::tick_running(Running& running, TimePoint now) {
  Attempt& attempt = running.attempt;
  if (running.follow_by && now >= *running.follow_by) {
    running.follow_by.reset();
    const std::string rest = ranks_text(attempt.tally.running(), attempt.assignment.first_rank);
    attempt.tally.nobody_followed();
    failed(running, now,
           fmt::format("rank {} ended with 75 (state saved), but {} did not end within {} s (--shutdown-timeout): "
                       "there is no state that all can resume from",
                       attempt.assignment.first_rank.value + attempt.tally.blamed()->worker.value, rest,
                       options_.shutdown_timeout.count() / 1000.0));
    return;
  }
  if (running.say_early_at && now >= *running.say_early_at) {
    running.say_early_at.reset();
    running.said_early = true;
    const auto early = attempt.tally.early_finishers();
    std::vector<LocalRank> who;
    auto first = early.front()->time;
    for (const WorkerEnd* end : early) {
      who.push_back(end->worker);
      first = std::min(first, end->time);
    }
    say(Say::Tone::info,
        fmt::format("{} ended with 0{} at {}; {} run{} on", ranks_text(who, attempt.assignment.first_rank),
                    who.size() == 1 ? "" : ", the first", time_of_day(first),
                    ranks_text(attempt.tally.running(), attempt.assignment.first_rank),
                    attempt.tally.running().size() == 1 ? "s" : ""));
    return;
  }
  // The third deadline: the launcher that hosted the rendezvous is lost.
  say(Say::Tone::error, fmt::format("the node that hosted the rendezvous is lost, and nobody serves {}: stopping the "
                                    "workers",
                                    options_.endpoint.to_string()));
  Stop stop;
  stop.signal = kSigTerm;
  stop.patience = options_.shutdown_timeout;
  stop.verdict = unreachable();
  begin_stop(std::move(attempt), std::move(stop), now);
}

}  // namespace ddprun::launcher
