#include "tests/unit/launcher/node_life_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "common/signal_names.h"
#include "launcher/life/node_words.h"

namespace ddprun::launcher {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

std::string_view kind_text(JobOutcome::Kind kind) {
  constexpr std::string_view kNames[] = {"success",     "worker_failure", "resume_me",   "signalled",
                                         "unavailable", "stopped",        "cannot_start"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string text_of(const NodeAction& action) {
  if (const auto* a = std::get_if<BindAndJoin>(&action))
    return fmt::format("join{}, last round {}", a->again ? " again" : "", a->last_round.value);
  if (const auto* a = std::get_if<AcceptRound>(&action))
    return fmt::format("accept round {}", a->assignment.round.value);
  if (const auto* a = std::get_if<StartWorkers>(&action)) {
    return fmt::format("start {} of round {}", ranks_text(a->workers, Rank(0)), a->assignment.round.value);
  }
  if (const auto* a = std::get_if<AskToStop>(&action)) {
    return fmt::format("ask {} to stop: {}{}", a->worker.value, signal_name(a->signal),
                       a->scope == SignalScope::group ? " to its group" : "");
  }
  if (const auto* a = std::get_if<Kill>(&action)) return fmt::format("kill {}", a->worker.value);
  if (std::holds_alternative<DrainWorkers>(action)) return "drain";
  if (std::holds_alternative<HurryDrain>(action)) return "hurry";
  if (const auto* a = std::get_if<EndHelpers>(&action)) {
    return a->signal == 0 ? "end helpers" : "end helpers: " + signal_name(a->signal);
  }
  if (const auto* a = std::get_if<TellDone>(&action)) {
    return a->result == rdzv::DoneResult::success ? "tell: done" : "tell: done, resume me";
  }
  if (const auto* a = std::get_if<TellFailure>(&action)) {
    return fmt::format("tell failure: {}{}{}", rdzv::describe(a->record), a->permanent ? " permanent" : "",
                       a->quick ? " quick" : "");
  }
  if (const auto* a = std::get_if<TellLeave>(&action)) return "tell: leaves, " + a->reason;
  if (const auto* a = std::get_if<Say>(&action)) {
    constexpr std::string_view kTones = "IWE";
    return fmt::format("{}: {}", kTones[static_cast<std::size_t>(a->tone)], a->text);
  }
  const JobOutcome& outcome = std::get<End>(action).outcome;
  std::string text = fmt::format("END {} {}", kind_text(outcome.kind), outcome.exit_code);
  if (outcome.root_cause) text += fmt::format(" [{}]", rdzv::describe(*outcome.root_cause));
  if (!outcome.reason.empty()) text += ": " + outcome.reason;
  for (const std::string& note : outcome.notes) text += "\n  note: " + note;
  return text;
}

}  // namespace

std::string NodeLifeScenario::render(const NodeActions& actions) {
  std::string out;
  for (const NodeAction& action : actions) out += text_of(action) + "\n";
  if (life_->phase() != phase_) {
    phase_ = life_->phase();
    out += fmt::format("[{}]\n", phase_);
  }
  if (const auto due = life_->next_deadline(); due && *due <= now_) out += "BROKEN: a deadline stays\n";
  if (manual_) return out;
  for (const NodeAction& action : actions) {
    if (std::holds_alternative<AcceptRound>(action)) out += event(RoundAccepted{round_});
    if (std::holds_alternative<StartWorkers>(action)) out += event(WorkersStarted{round_});
  }
  return out;
}

void NodeLifeScenario::feed_link() {
  if (up_) {
    link_.useless_since.reset();
    link_.useful = now_;
  }
  life_->on(link_, now_);
}

std::string NodeLifeScenario::pass(Duration time) {
  const TimePoint end = now_ + time;
  std::string out;
  while (now_ < end) {
    TimePoint next = std::min(end, now_ + seconds(1));
    if (const auto due = life_->next_deadline()) next = std::min(next, std::max(*due, now_));
    now_ = next;
    feed_link();
    const std::string did = render(life_->tick(now_));
    if (!did.empty()) {
      out += fmt::format("at {} ms\n", std::chrono::duration_cast<milliseconds>(now_ - start_).count()) + did;
    }
    if (out.find("BROKEN") != std::string::npos) return out;
  }
  return out;
}

std::string NodeLifeScenario::run(const std::string& command) {
  std::istringstream words(command);
  std::string verb, word;
  words >> verb;
  std::map<std::string, std::string> named;
  std::vector<std::string> flags, plain;
  while (words >> word) {
    const auto equal = word.find('=');
    if (equal != std::string::npos && plain.size() <= 1) {
      named[word.substr(0, equal)] = word.substr(equal + 1);
    } else {
      plain.push_back(word);
    }
  }
  const auto number = [&](const char* key, std::int64_t fallback) {
    const auto found = named.find(key);
    return found == named.end() ? fallback : std::stoll(found->second);
  };
  const auto flag = [&](const char* name) {
    const auto found = std::find(plain.begin(), plain.end(), name);
    if (found == plain.end()) return false;
    plain.erase(found);
    return true;
  };
  const auto first_number = [&] { return std::stoll(plain.at(0)); };
  const auto rest = [&](std::size_t from) {
    std::string text;
    for (std::size_t i = from; i < plain.size(); ++i) text += (text.empty() ? "" : " ") + plain[i];
    return text;
  };
  if (verb == "node") {
    NodeOptions options;
    options.run_id = RunId("job");
    options.endpoint = Endpoint{"10.0.0.1", 29400};
    options.nproc = number("nproc", 2);
    options.job.max_restarts = number("restarts", 3);
    options.shutdown_timeout = milliseconds(number("shutdown", 30'000));
    options.job.join_timeout = milliseconds(number("join", 600'000));
    options.job.close_timeout = milliseconds(number("close", 30'000));
    options.restart_backoff = milliseconds(number("backoff", 0));
    if (flag("keep")) options.on_silence = OnSilence::keep;
    options.wait_for_helpers = flag("wait_for_helpers");
    options.signal_groups = flag("signal_groups");
    manual_ = flag("manual");
    life_ = std::make_unique<NodeLife>(options, "host-a");
    std::string out = render(life_->begin(now_));
    feed_link();
    return out;
  }
  if (verb == "assign") {
    rdzv::Assignment a;
    round_ = a.round = Round(first_number());
    a.restart_count = number("restarts", 0);
    a.group_rank = GroupRank(number("group", 0));
    a.group_world_size = number("of", 1);
    a.first_rank = Rank(number("first", 0));
    a.world_size = number("world", 2);
    return event(rdzv::ServerMessage(a));
  }
  if (verb == "accepted") return event(RoundAccepted{round_});
  if (verb == "started") return event(WorkersStarted{round_});
  if (verb == "start-fails") {
    StartFailed failed;
    failed.round = Round(number("round", round_.value));
    failed.exit_code = static_cast<int>(number("code", 1));
    failed.permanent = flag("permanent");
    failed.why = rest(0);
    return event(failed);
  }
  if (verb == "join-fails") return event(JoinFailed{rest(0)});
  if (verb == "exit") {
    WorkerEnded ended;
    ended.round = Round(number("round", round_.value));
    ended.end.worker = LocalRank(first_number());
    ended.end.pid = 100 + ended.end.worker.value;
    ended.end.code = static_cast<int>(number("code", 0));
    ended.end.signal = static_cast<int>(number("signal", 0));
    ended.end.asked = flag("asked");
    ended.after_guard = flag("guard");
    ended.end.at = now_;
    ended.end.time = std::chrono::system_clock::time_point(seconds(36'000) + (now_ - start_));
    return event(ended);
  }
  if (verb == "drained") return event(WorkersDrained{Round(number("round", round_.value))});
  if (verb == "restart") {
    rdzv::Restart restart;
    restart.round = Round(first_number());
    restart.reason = rest(1);
    return event(rdzv::ServerMessage(restart));
  }
  if (verb == "finished" || verb == "resume-me") {
    rdzv::Finished finished;
    if (verb == "resume-me") finished.result = rdzv::DoneResult::resume_me;
    return event(rdzv::ServerMessage(finished));
  }
  rdzv::Shutdown shutdown;
  if (verb == "fail") {
    FailureRecord record;
    record.rank = Rank(first_number());
    record.round = round_;
    record.host = "host-b";
    record.exit_code = static_cast<int>(number("code", 0));
    record.signal = static_cast<int>(number("signal", 0));
    shutdown.failures.push_back(record);
    shutdown.root = 0;
    shutdown.reason = rest(1).empty() ? rdzv::describe(record) : rest(1);
    return event(rdzv::ServerMessage(shutdown));
  }
  if (verb == "too-few" || verb == "drain" || verb == "stop-job") {
    shutdown.cause = verb == "too-few" ? rdzv::ShutdownCause::too_few_nodes
                     : verb == "drain" ? rdzv::ShutdownCause::drained
                                       : rdzv::ShutdownCause::stopped;
    shutdown.reason = rest(0);
    return event(rdzv::ServerMessage(shutdown));
  }
  if (verb == "refused" || verb == "refused-for-now") {
    rdzv::Refused refused;
    refused.retry = verb == "refused-for-now";
    refused.reason = rest(0);
    return event(rdzv::ServerMessage(refused));
  }
  if (verb == "lease") return event(LeaseOver());
  if (verb == "hopeless") return event(Hopeless{rest(0)});
  if (verb == "signal") return event(StopRequest{static_cast<int>(first_number())});
  if (verb == "pause") {
    now_ += milliseconds(first_number());
    std::string out = event(Paused{milliseconds(first_number())});
    feed_link();  // as the client sees it, whose times are not moved
    return out + render(life_->tick(now_));
  }
  if (verb == "link") {
    up_ = plain.at(0) == "up";
    link_.embedded = flag("embedded");
    if (!up_) {
      link_.useless_since = now_;
      link_.problem = "connection refused";
    }
    feed_link();
    return "";
  }
  if (verb == "after") return pass(milliseconds(first_number()));
  return "unknown command\n";
}

}  // namespace ddprun::launcher
