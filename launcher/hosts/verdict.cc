#include "launcher/hosts/verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/exit_code.h"
#include "common/printable.h"
#include "common/signal_names.h"

namespace ddprun::launcher::hosts {
namespace {

// What the last word needs of a node's report. It comes from another host: nothing in it is trusted to have its type.
struct Told {
  std::string host, reason, cause_host, how, message;
  std::int64_t rank = -1, group_rank = -1;
  bool has_cause = false;
};

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

Told told_by(const std::string& report) {
  Told told;
  const auto json = nlohmann::json::parse(report, nullptr, false);
  if (!json.is_object()) return told;
  told.host = text_of(json, "host");
  told.reason = text_of(json, "reason");
  const auto cause = json.find("root_cause");
  if (cause == json.end() || !cause->is_object()) return told;
  told.has_cause = true;
  told.cause_host = text_of(*cause, "host");
  told.how = text_of(*cause, "how");
  told.message = text_of(*cause, "message");
  const auto number = [&cause](const char* key) {
    const auto at = cause->find(key);
    return at != cause->end() && at->is_number_integer() ? at->get<std::int64_t>() : -1;
  };
  told.rank = number("rank");
  told.group_rank = number("group_rank");
  return told;
}

std::string one_line(const std::string& text) { return printable_without_colours(text.substr(0, text.find('\n'))); }

// "a (c1)" where the host calls itself otherwise than the list does.
std::string shown(const std::string& listed, const std::string& own) {
  const std::string address = listed.substr(listed.find('@') == std::string::npos ? 0 : listed.find('@') + 1);
  return own.empty() || own == address || address.starts_with(own + ".")
             ? listed
             : fmt::format("{} ({})", listed, printable(own));
}

using Kind = HostEnd::Kind;

// "b: ssh: connect to host b port 22: Connection refused", for each that is gone.
std::vector<std::string> words_of(const std::vector<std::string>& hosts, const std::vector<HostEnd>& ends, Kind kind) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].kind == kind) out.push_back(fmt::format("{}: {}", hosts[i], printable(ends[i].words)));
  }
  return out;
}

std::string some(std::vector<std::string> list, std::string_view separator) {
  constexpr std::size_t kShown = 8;
  const std::size_t more = list.size() > kShown ? list.size() - kShown : 0;
  list.resize(list.size() - more);
  return fmt::format("{}{}", fmt::join(list, separator), more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string plural(std::size_t n) { return n == 1 ? "1 host" : fmt::format("{} hosts", n); }

}  // namespace

Verdict give_verdict(const std::vector<std::string>& hosts, const std::vector<HostEnd>& ends, std::size_t min_hosts,
                     bool started, int stopped_by) {
  const auto count = [&ends](auto&& which) {
    return static_cast<std::size_t>(std::count_if(ends.begin(), ends.end(), which));
  };
  const auto unreached = words_of(hosts, ends, Kind::no_start);
  const auto lost = words_of(hosts, ends, Kind::lost);
  const auto say = [](std::string sentence) { return "ddprun: " + std::move(sentence) + "\n"; };

  if (!started) {
    if (stopped_by != 0) {
      return {exit_code::kSignalBase + stopped_by,
              say(fmt::format("{} before the job began", signal_name(stopped_by)))};
    }
    const bool usage =
        count([](const HostEnd& end) { return end.kind == Kind::no_start && end.code == exit_code::kUsage; }) > 0;
    return {usage ? exit_code::kUsage : exit_code::kUnavailable,
            say(fmt::format("the job cannot begin: it needs {} of the {} in the list, and {} cannot be used: {}",
                            min_hosts == hosts.size() ? "all" : fmt::format("at least {}", min_hosts),
                            plural(hosts.size()), plural(unreached.size()), some(unreached, "; ")))};
  }

  const std::size_t well = count([](const HostEnd& end) { return end.kind == Kind::ended && end.code == 0; });
  const std::size_t ended = count([](const HostEnd& end) { return end.kind == Kind::ended; });
  if (well > 0 && well == ended && well >= min_hosts) {
    if (well == hosts.size()) return {exit_code::kOk, ""};
    auto without = unreached;
    without.insert(without.end(), lost.begin(), lost.end());
    return {exit_code::kOk, say(fmt::format("the job ended well on {} of {}; not on {}", well, plural(hosts.size()),
                                            some(without, "; ")))};
  }

  // The launcher of the node whose worker failed first knows most of it; any other that was told comes next.
  std::optional<std::size_t> teller;
  Told cause;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].kind != Kind::ended || ends[i].code == 0) continue;
    Told told = told_by(ends[i].report);
    if (!told.has_cause) continue;
    const bool own = told.cause_host == told.host;
    if (teller && !own) continue;
    teller = i;
    cause = std::move(told);
    if (own) break;
  }
  const auto host_called = [&](const std::string& own) {
    // Two in the list may be one host, or call themselves alike: the group rank is mostly the place in the list.
    const auto likely = static_cast<std::size_t>(cause.group_rank);
    if (cause.group_rank >= 0 && likely < ends.size() && told_by(ends[likely].report).host == own) {
      return shown(hosts[likely], own);
    }
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].kind == Kind::ended && told_by(ends[i].report).host == own) return shown(hosts[i], own);
    }
    return printable(own);
  };

  if (stopped_by != 0) {
    const bool saved = ended == ends.size() &&
                       count([](const HostEnd& end) { return end.code == exit_code::kResumeMe; }) == ends.size();
    const int code = saved ? exit_code::kResumeMe : exit_code::kSignalBase + stopped_by;
    std::string text = fmt::format("stopped by {}{}", signal_name(stopped_by),
                                   saved ? ": every host saved its state (exit code 75: start it again)" : "");
    if (!lost.empty()) text += "; lost: " + some(lost, "; ");
    return {code, say(text)};
  }
  std::string also;
  if (!unreached.empty()) also += "; not reached: " + some(unreached, "; ");
  if (teller) {
    const std::string message = one_line(cause.message);
    const std::string who = cause.rank < 0 ? host_called(cause.cause_host)
                                           : fmt::format("rank {} on {}", cause.rank, host_called(cause.cause_host));
    // A sentence of its own where no worker ran.
    const std::string how = cause.rank < 0 ? one_line(cause.how) : "ended with " + one_line(cause.how);
    if (!lost.empty()) also = "; lost: " + some(lost, "; ") + also;
    return {ends[*teller].code, say(fmt::format("the job on {} failed: {} {}{}{}", plural(hosts.size()), who, how,
                                                message.empty() || message == cause.how ? "" : ": " + message, also))};
  }
  if (!lost.empty()) {
    return {exit_code::kUnavailable,
            say(fmt::format("the job on {} failed: lost {}{}", plural(hosts.size()), some(lost, "; "), also))};
  }
  // No worker failed: a launcher could not do its part, and the others followed. "Saved everywhere" (75) is an end,
  // too; beside another one it is not the reason.
  const HostEnd* first = nullptr;
  for (const auto& end : ends) {
    if (end.kind != Kind::ended || end.code == 0) continue;
    const bool more = first != nullptr && first->code == exit_code::kResumeMe && end.code != exit_code::kResumeMe;
    const bool less = first != nullptr && first->code != exit_code::kResumeMe && end.code == exit_code::kResumeMe;
    if (first == nullptr || more || (!less && end.order < first->order)) first = &end;
  }
  int code = exit_code::kUnavailable;
  std::string why = "no host did its part";
  if (first != nullptr) {
    const Told told = told_by(first->report);
    const std::string words = !first->words.empty() ? first->words : told.reason;
    code = first->code;
    why = fmt::format("{}: {}", shown(hosts[static_cast<std::size_t>(first - ends.data())], told.host),
                      words.empty() ? fmt::format("its ddprun ended with exit code {}", code) : one_line(words));
  }
  return {code, say(fmt::format("the job on {} failed: {}{}", plural(hosts.size()), why, also))};
}

}  // namespace ddprun::launcher::hosts
