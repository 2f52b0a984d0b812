#include "tests/unit/rendezvous/membership_scenario.h"

#include <fmt/format.h>

#include <sstream>

namespace ddprun::rendezvous {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

std::string text_of(const rdzv::ServerMessage& message) {
  if (const auto* a = std::get_if<rdzv::Assignment>(&message)) {
    return fmt::format("Assignment round={} node {} of {} first_rank={} world={} role={}/{} master={} restarts={}",
                       a->round.value, a->group_rank.value, a->group_world_size, a->first_rank.value, a->world_size,
                       a->first_role_rank, a->role_world_size, a->master.to_string(), a->restart_count);
  }
  if (const auto* r = std::get_if<rdzv::Restart>(&message)) {
    return fmt::format("Restart round={} restarts={}: {}", r->round.value, r->restart_count, r->reason);
  }
  if (const auto* f = std::get_if<rdzv::Finished>(&message)) {
    return f->result == rdzv::DoneResult::success ? "Finished" : "Finished resume_me";
  }
  if (const auto* s = std::get_if<rdzv::Shutdown>(&message)) {
    std::string text = fmt::format("Shutdown cause={}: {}", static_cast<int>(s->cause), s->reason);
    if (s->root) text += fmt::format(" [root {} of {}]", *s->root, s->failures.size());
    return text;
  }
  if (const auto* r = std::get_if<rdzv::Refused>(&message)) {
    return fmt::format("Refused{}: {}", r->retry ? " (retry)" : "", r->reason);
  }
  if (const auto* n = std::get_if<rdzv::Notice>(&message)) return "Notice: " + n->text;
  if (const auto* r = std::get_if<rdzv::Registered>(&message))
    return fmt::format("Registered round={}", r->round.value);
  return "?";
}

std::int64_t number(const std::map<std::string, std::string>& arguments, const std::string& key,
                    std::int64_t fallback) {
  const auto found = arguments.find(key);
  return found == arguments.end() ? fallback : std::stoll(found->second);
}

}  // namespace

rdzv::NodeInfo MembershipScenario::node(const std::string& name, const Arguments& arguments) {
  const int index = numbers_.try_emplace(name, static_cast<int>(numbers_.size()) + 1).first->second;
  rdzv::NodeInfo& d = defaults_;
  const auto time = [&](const char* key, milliseconds& value) {
    if (arguments.contains(key)) value = seconds(number(arguments, key, 0));
  };
  if (const auto found = arguments.find("nnodes"); found != arguments.end()) {
    const auto colon = found->second.find(':');
    d.job.nnodes_min = std::stoll(found->second.substr(0, colon));
    d.job.nnodes_max = colon == std::string::npos ? d.job.nnodes_min : std::stoll(found->second.substr(colon + 1));
  }
  time("join", d.job.join_timeout);
  time("last_call", d.job.last_call_timeout);
  time("keep_alive", d.job.keep_alive_interval);
  d.job.max_restarts = number(arguments, "restarts", d.job.max_restarts);
  d.job.crash_loop_limit = number(arguments, "crash_loop", d.job.crash_loop_limit);
  d.nproc = number(arguments, "nproc", d.nproc);
  if (arguments.contains("static")) d.job.backend = RdzvBackend::static_ranks;
  rdzv::NodeInfo info = d;
  info.run_id = RunId("job");
  info.node_id = NodeId(name);
  const auto text = [&](const char* key, std::string fallback) {
    const auto found = arguments.find(key);
    return found == arguments.end() ? fallback : found->second;
  };
  info.host = text("host", "host-" + name);
  info.address = text("address", fmt::format("10.0.0.{}", index));
  info.role = text("role", "default");
  info.topology_key = text("topology", "");
  if (arguments.contains("rank")) info.node_rank = number(arguments, "rank", 0);
  info.worker_store_port = static_cast<std::uint16_t>(7000 + index);
  nodes_[name] = info;
  quiet_.erase(name);
  return info;
}

std::string MembershipScenario::render(const Actions& actions) {
  std::string out;
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<Send>(&action)) {
      out += fmt::format("{} <- {}\n", send->node.value, text_of(send->message));
    } else if (const auto* drop = std::get_if<Drop>(&action)) {
      out += fmt::format("{} dropped: {}\n", drop->node.value, drop->why);
    } else {
      out += fmt::format("* {}\n", std::get<Event>(action).text);
    }
  }
  if (const std::string broken = membership_.check(); !broken.empty()) out += "BROKEN: " + broken + "\n";
  return out;
}

std::string MembershipScenario::pass(Duration time) {
  const TimePoint end = now_ + time;
  std::string out;
  TimePoint next_beat = now_;
  while (now_ < end) {
    if (now_ >= next_beat) {
      for (const auto& [name, info] : nodes_) {
        if (!quiet_.contains(name)) membership_.heard(NodeId(name), now_);
      }
      next_beat = now_ + seconds(1);
    }
    TimePoint next = std::min(end, next_beat);
    if (const auto due = membership_.next_deadline(); due && *due < next) next = std::max(*due, now_);
    now_ = next;
    const auto due = membership_.next_deadline();
    if (!due || *due > now_) continue;
    const std::string did = render(membership_.tick(now_));
    if (!did.empty()) {
      out += fmt::format("at {} ms\n", std::chrono::duration_cast<milliseconds>(now_ - start_).count()) + did;
    }
    // tick() must have moved its deadline on, or time would stand still here.
    if (const auto again = membership_.next_deadline(); again && *again <= now_)
      return out + "BROKEN: a deadline stays\n";
  }
  return out;
}

std::string MembershipScenario::run(const std::string& command) {
  std::istringstream words(command);
  std::string verb, name, word;
  words >> verb >> name;
  Arguments arguments;
  std::vector<std::string> rest;
  while (words >> word) {
    rest.push_back(word);
    const auto equal = word.find('=');
    arguments[word.substr(0, equal)] = equal == std::string::npos ? "" : word.substr(equal + 1);
  }
  const NodeId id(name);
  if (verb == "join") {
    rdzv::Join join;
    join.node = node(name, arguments);
    join.last_round = Round(number(arguments, "last", 0));
    return render(membership_.on(join, now_));
  }
  if (verb == "register") {
    rdzv::Register registration;
    registration.node = node(name, arguments);
    registration.slice.round = Round(number(arguments, "round", 1));
    registration.slice.group_rank = GroupRank(number(arguments, "group", 0));
    registration.slice.group_world_size = number(arguments, "of", 1);
    registration.slice.first_rank = Rank(number(arguments, "first", 0));
    registration.slice.world_size = number(arguments, "world", 1);
    registration.slice.restart_count = number(arguments, "count", 0);
    const std::string state = arguments.contains("state") ? arguments.at("state") : "running";
    registration.state = state == "finished"    ? rdzv::MemberState::finished
                         : state == "resumable" ? rdzv::MemberState::resumable
                         : state == "stopping"  ? rdzv::MemberState::stopping
                                                : rdzv::MemberState::running;
    return render(membership_.on(registration, now_));
  }
  if (verb == "fail") {
    rdzv::Failure failure;
    failure.permanent = arguments.contains("permanent");
    failure.quick = arguments.contains("quick");
    failure.record.rank = Rank(number(arguments, "rank", 0));
    failure.record.round = Round(number(arguments, "round", membership_.round().value));
    failure.record.exit_code = static_cast<int>(number(arguments, "code", arguments.contains("signal") ? 0 : 1));
    failure.record.signal = static_cast<int>(number(arguments, "signal", 0));
    failure.record.stopped_by_us = arguments.contains("echo");
    failure.record.host = nodes_[name].host;
    const auto at = std::chrono::duration_cast<milliseconds>(now_ - start_) - milliseconds(number(arguments, "age", 0));
    failure.record.unix_time = milliseconds(1'000'000) + at;
    return render(membership_.on(id, failure, now_));
  }
  if (verb == "done") {
    rdzv::Done done;
    done.round = Round(number(arguments, "round", membership_.round().value));
    done.result = arguments.contains("resume_me") ? rdzv::DoneResult::resume_me : rdzv::DoneResult::success;
    return render(membership_.on(id, done, now_));
  }
  if (verb == "leave") {
    rdzv::Leave leave;
    leave.reason = rest.empty() ? "told to stop" : rest.front();
    quiet_.insert(name);
    return render(membership_.on(id, leave, now_));
  }
  if (verb == "close") {
    quiet_.insert(name);
    return render(membership_.disconnected(id, now_));
  }
  if (verb == "silent") return quiet_.insert(name), "";
  if (verb == "heard") {
    quiet_.erase(name);
    membership_.heard(id, now_);
    return "";
  }
  if (verb == "after") return pass(milliseconds(std::stoll(name)));
  if (verb == "why") {
    const std::string why = membership_.why_waiting(now_);
    return why.empty() ? "(waits for nothing)\n" : why + "\n";
  }
  if (verb == "drain") {
    Actions actions;
    if (!membership_.drain(name, "drained with ddpctl drain", now_, actions)) return "no such node\n";
    quiet_.insert(name);
    return render(actions);
  }
  if (verb == "stop") return render(membership_.stop("stopped with ddpctl stop", now_));
  if (verb == "restart-daemon") {  // "knowing": with a state file
    const auto known = membership_.known_world();
    membership_ = Membership(RunId("job"));
    if (name == "knowing" && known) membership_.expect(*known, now_);
    return "";
  }
  if (verb == "own-address") {
    membership_.set_own_address(name);
    return "";
  }
  if (verb == "status") {
    std::string out;
    for (const NodeStatus& n : membership_.status(now_).nodes) {
      out += fmt::format("{} {} group_rank={} first_rank={}\n", n.node_id.value, to_word(n.state), n.group_rank,
                         n.first_rank);
    }
    for (const FailureRecord& f : membership_.status(now_).failures) out += "failure: " + rdzv::describe(f) + "\n";
    return out;
  }
  return "unknown command\n";
}

}  // namespace ddprun::rendezvous
