#include "launcher/hosts/host_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/exit_code.h"
#include "common/signal_names.h"

namespace ddprun::launcher::hosts {
namespace {

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000.0; }

void earlier(std::optional<TimePoint>& deadline, TimePoint other) {
  if (!deadline || other < *deadline) deadline = other;
}

}  // namespace

HostJob::HostJob(HostJobOptions options)
    : options_(std::move(options)), parties_(options_.hosts.size()), ends_(options_.hosts.size()) {}

std::size_t HostJob::count(State state) const {
  return static_cast<std::size_t>(
      std::count_if(parties_.begin(), parties_.end(), [state](const Party& party) { return party.state == state; }));
}

bool HostJob::waiting_for_starts() const { return count(State::queued) + count(State::dialling) > 0; }

std::size_t HostJob::of_use() const {
  std::size_t out = 0;
  for (std::size_t i = 0; i < parties_.size(); ++i) {
    out += parties_[i].state != State::over || (ends_[i].kind == HostEnd::Kind::ended && ends_[i].code == 0);
  }
  return out;
}

bool HostJob::hopeless() const {
  const auto gone = [](HostEnd::Kind kind) { return kind == HostEnd::Kind::no_start || kind == HostEnd::Kind::lost; };
  return of_use() < options_.min_hosts || (options_.first_serves && gone(ends_.front().kind));
}

HostJob::Actions HostJob::begin(TimePoint now) {
  Actions out;
  dial_more(now, out);
  return out;
}

void HostJob::dial_more(TimePoint now, Actions& out) {
  std::size_t dialling = count(State::dialling);
  for (std::size_t i = 0; i < parties_.size() && dialling < kDialAtOnce; ++i) {
    if (parties_[i].state != State::queued) continue;
    parties_[i] = {State::dialling, now, now};
    out.push_back({Do::dial, i, 0});
    ++dialling;
  }
}

void HostJob::over(std::size_t host, HostEnd end, TimePoint now, Actions& out) {
  if (parties_[host].state == State::over || finished_) return;  // what is hung up now was no host's fault
  const bool hang_up = end.kind != HostEnd::Kind::ended;
  parties_[host].state = State::over;
  ends_[host] = std::move(end);
  ends_[host].order = over_++;
  if (hang_up) out.push_back({Do::hang_up, host, 0});
  if (!started_) {
    dial_more(now, out);
    consider_start(now, out);
  } else {
    consider_end(now, out);
  }
}

HostJob::Actions HostJob::on_hello(std::size_t host, const Hello& hello, TimePoint now) {
  Actions out;
  if (parties_[host].state != State::dialling) return out;
  if (hello.version != kVersion) {
    over(host,
         {HostEnd::Kind::no_start, exit_code::kUsage,
          fmt::format("the ddprun there is another version ({}), which this one does not understand",
                      hello.program_version),
          "", 0},
         now, out);
    return out;
  }
  parties_[host].state = State::ready;
  parties_[host].heard = now;
  dial_more(now, out);
  consider_start(now, out);
  return out;
}

// All have answered or failed: the job begins, or cannot.
void HostJob::consider_start(TimePoint now, Actions& out) {
  if (started_ || finished_) return;
  if (hopeless()) {
    // One sentence for all that are wrong is worth a moment.
    if (waiting_for_starts()) {
      earlier(give_up_starting_at_, now + kMoreWords);
      if (now < *give_up_starting_at_) return;
    }
    finished_ = true;
    for (std::size_t i = 0; i < parties_.size(); ++i) {
      if (parties_[i].state != State::over) out.push_back({Do::hang_up, i, 0});
    }
    out.push_back({Do::finish, 0, 0});
    return;
  }
  if (waiting_for_starts()) return;
  started_ = true;
  for (std::size_t i = 0; i < parties_.size(); ++i) {
    if (parties_[i].state != State::ready) continue;
    parties_[i].state = State::started;
    parties_[i].heard = now;
    out.push_back({Do::start, i, 0});
  }
}

HostJob::Actions HostJob::on_end(std::size_t host, const End& end, TimePoint now) {
  Actions out;
  const bool began = parties_[host].state == State::started;  // else it ended before it was told anything
  over(host, {began ? HostEnd::Kind::ended : HostEnd::Kind::no_start, end.code, end.sentence, end.report, 0}, now, out);
  return out;
}

void HostJob::on_heard(std::size_t host, TimePoint now) { parties_[host].heard = now; }

HostJob::Actions HostJob::on_shell_end(std::size_t host, std::string words, TimePoint now) {
  Actions out;
  const bool began = parties_[host].state == State::started;
  over(host, {began ? HostEnd::Kind::lost : HostEnd::Kind::no_start, exit_code::kUnavailable, std::move(words), "", 0},
       now, out);
  return out;
}

void HostJob::consider_end(TimePoint now, Actions& out) {
  if (count(State::started) == 0) {
    finished_ = true;
    out.push_back({Do::finish, 0, 0});
    return;
  }
  if (stopped_by_ != 0 || give_up_at_ || !hopeless()) return;
  // A lost host says nothing to the others, who would wait for it for join_timeout. One that failed has told them.
  const auto lost = [](const HostEnd& end) { return end.kind == HostEnd::Kind::lost; };
  const bool at_once = std::any_of(ends_.begin(), ends_.end(), lost);
  earlier(stop_at_, at_once ? now : now + kOthersEnd);
  if (now >= *stop_at_) stop_all(kSigTerm, now, out);
}

void HostJob::stop_all(int number, TimePoint now, Actions& out) {
  stop_at_.reset();
  for (std::size_t i = 0; i < parties_.size(); ++i) {
    if (parties_[i].state == State::started) out.push_back({Do::signal, i, number});
  }
  earlier(give_up_at_, now + options_.patience + kAfterPatience);
}

HostJob::Actions HostJob::on_signal(int number, bool ends_job, TimePoint now) {
  Actions out;
  if (finished_) return out;
  if (!ends_job) {
    for (std::size_t i = 0; i < parties_.size(); ++i) {
      if (parties_[i].state == State::started) out.push_back({Do::signal, i, number});
    }
    return out;
  }
  const bool again = stopped_by_ != 0;
  if (!again) stopped_by_ = number;
  if (!started_) {
    finished_ = true;
    for (std::size_t i = 0; i < parties_.size(); ++i) {
      if (parties_[i].state != State::over) out.push_back({Do::hang_up, i, 0});
    }
    out.push_back({Do::finish, 0, 0});
    return out;
  }
  stop_all(number, now, out);
  if (again && (number == kSigInt || number == kSigQuit)) earlier(give_up_at_, now + kImpatience);
  return out;
}

HostJob::Actions HostJob::tick(TimePoint now) {
  Actions out;
  if (finished_) return out;
  for (std::size_t i = 0; i < parties_.size(); ++i) {
    const Party& party = parties_[i];
    if (party.state == State::dialling && now >= party.since + options_.start_timeout) {
      over(i,
           {HostEnd::Kind::no_start, exit_code::kUnavailable,
            fmt::format("no ddprun answered within {:g} s", seconds(options_.start_timeout)), "", 0},
           now, out);
    } else if ((party.state == State::started || party.state == State::ready) &&
               now >= party.heard + options_.silence) {
      const bool began = party.state == State::started;
      over(i,
           {began ? HostEnd::Kind::lost : HostEnd::Kind::no_start, exit_code::kUnavailable,
            fmt::format("silent for {:g} s (is it down, or the network cut?)", seconds(options_.silence)), "", 0},
           now, out);
    }
    if (finished_) return out;
  }
  if (!started_ && give_up_starting_at_ && now >= *give_up_starting_at_) consider_start(now, out);
  if (stop_at_ && now >= *stop_at_) stop_all(kSigTerm, now, out);
  if (give_up_at_ && now >= *give_up_at_) {
    for (std::size_t i = 0; i < parties_.size() && !finished_; ++i) {
      if (parties_[i].state != State::started) continue;
      over(i,
           {HostEnd::Kind::lost, exit_code::kUnavailable,
            "it did not end when it was told to; its processes end when they notice that this launcher is gone", "", 0},
           now, out);
    }
  }
  return out;
}

std::optional<TimePoint> HostJob::next_deadline() const {
  std::optional<TimePoint> next;
  if (finished_) return next;
  for (const Party& party : parties_) {
    if (party.state == State::dialling) earlier(next, party.since + options_.start_timeout);
    if (party.state == State::ready || party.state == State::started) earlier(next, party.heard + options_.silence);
  }
  for (const auto& deadline : {give_up_starting_at_, stop_at_, give_up_at_}) {
    if (deadline) earlier(next, *deadline);
  }
  return next;
}

}  // namespace ddprun::launcher::hosts
