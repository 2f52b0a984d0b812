#include "launcher/job/report.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/exit_code.h"
#include "common/printable.h"
#include "common/signal_names.h"
#include "launcher/output/error_file.h"
#include "launcher/output/remedy.h"
#include "launcher/process/process.h"

namespace ddprun::launcher {
namespace {

constexpr int kWidth = 60;
constexpr std::size_t kMaxTracebackLines = 40;
constexpr std::size_t kMaxOthers = 8;

ExitStatus status_of(const FailureRecord& failure) {
  ExitStatus status;
  status.code = failure.exit_code;
  status.signal = failure.signal;
  return status;
}

std::string local_time(std::chrono::milliseconds unix_time) {
  const std::time_t seconds = unix_time.count() / 1000;
  std::tm parts = {};
  ::localtime_r(&seconds, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d_%H:%M:%S", &parts);
  return text;
}

std::string utc_time(std::chrono::milliseconds unix_time) {
  const std::time_t seconds = unix_time.count() / 1000;
  std::tm parts = {};
  ::gmtime_r(&seconds, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", text, unix_time.count() % 1000);
}

// A sentence that may go on in a second line, which must not look like a line of ours.
std::string in_block(const std::string& words) {
  std::string out;
  for (const char c : printable_lines(words)) out += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return out;
}

// A node that could not start its workers: the message says all, and there is no rank, code or process to name.
bool no_worker_ran(const FailureRecord& failure) { return !failure.message.empty(); }

std::string rank_and_host(const FailureRecord& failure) {
  return fmt::format("rank {}{}", failure.rank.value, failure.host.empty() ? "" : " on " + printable(failure.host));
}

// Why a 75, which says "start me again", has failed the job. The node whose workers did not agree knows best and says
// so itself; the other nodes get the code alone.
std::string why_not_resumed(const JobReport& report) {
  if (!report.root_cause) return "";
  const FailureRecord& root = *report.root_cause;
  if (root.signal != 0 || root.exit_code != exit_code::kResumeMe || no_worker_ran(root)) return "";
  const auto explains = [](const std::string& text) { return text.find("75 (state saved)") != std::string::npos; };
  if (explains(report.reason) || std::any_of(report.notes.begin(), report.notes.end(), explains)) return "";
  return rank_and_host(root) +
         " ended with 75 (state saved), others did not: there is no state that all can resume from";
}

std::vector<std::string> all_notes(const JobReport& report) {
  std::vector<std::string> notes = report.notes;
  if (std::string why = why_not_resumed(report); !why.empty()) notes.push_back(std::move(why));
  return notes;
}

std::string notes_text(const JobReport& report) {
  std::string text;
  for (const auto& note : all_notes(report)) text += "Note: " + in_block(note) + "\n";
  return text;
}

std::string error_file_path(const FailureRecord& failure) {
  for (const auto& path : failure.log_paths) {
    if (path.ends_with("error.json")) return printable(path);
  }
  if (failure.error_file_json.empty()) return "<N/A>";
  const ErrorFile file = parse_error_file(failure.error_file_json);
  if (!file.message.empty() || !file.callstack.empty()) return "(temporary, shown below)";
  const bool is_json = !error_file_value(failure.error_file_json).is_null();
  return is_json ? "(temporary, has no message)" : "(temporary, not readable as JSON)";
}

// Lines of `text`, cut from the front to the last `most`, each but the first put behind `indent`.
std::string indented(const std::string& text, const std::string& indent, std::size_t most) {
  std::vector<std::string_view> lines;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    lines.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most));
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i)
    out += (i == 0 ? "" : "\n" + indent) + printable_without_colours(lines[i]);
  return out;
}

// What the last lines of the worker say about the exception in its error file: they have it too.
bool lines_hold(const FailureRecord& failure, const std::string& message) {
  const std::string line = find_error_line(failure.last_lines);
  return !line.empty() && !message.empty() && line.find(message.substr(0, message.find('\n'))) != std::string::npos;
}

std::string traceback(const JobReport& report, const FailureRecord& failure) {
  const ErrorFile file = parse_error_file(failure.error_file_json);
  const bool shown = report.root_is_above && lines_hold(failure, file.message);
  if (!file.callstack.empty() && !shown) return indented(file.callstack, "    ", kMaxTracebackLines);
  if (!file.message.empty()) return indented(file.message, "    ", kMaxTracebackLines);
  if (failure.signal != 0) {
    return fmt::format("Signal {} ({}) received by PID {}", failure.signal, signal_name(failure.signal), failure.pid);
  }
  const std::string message = failure_message(failure);
  return message.empty() ? "<N/A>" : printable_without_colours(message);
}

// The last lines of its output; one exception is not printed twice.
std::string last_lines(const JobReport& report, const FailureRecord& root) {
  if (root.last_lines.empty()) return "";
  if (report.root_is_above) return fmt::format("The last lines of rank {} are above.\n", root.rank.value);
  const ErrorFile file = parse_error_file(root.error_file_json);
  if (!file.callstack.empty() && lines_hold(root, file.message)) return "";  // it is the traceback above
  const std::size_t count = root.last_lines.size();
  std::string text =
      fmt::format("Last {} of rank {}:\n", count == 1 ? "line" : fmt::format("{} lines", count), root.rank.value);
  for (const auto& line : root.last_lines) text += "  | " + printable_without_colours(line) + "\n";
  return text;
}

// "rank 1 on node1: exit code 3", or why no worker ran.
std::string who_and_how(const FailureRecord& failure) {
  const std::string how = printable(how_it_ended(failure));
  return no_worker_ran(failure) ? how : rank_and_host(failure) + ": " + how;
}

// The block with torchrun's labels, which people and log parsers know.
std::string labelled(const JobReport& report, const FailureRecord& failure) {
  if (no_worker_ran(failure)) {
    return fmt::format(
        "  time      : {}\n"
        "  host      : {}\n",
        local_time(failure.unix_time), printable(failure.host));
  }
  std::string code = failure.signal != 0 ? std::to_string(-failure.signal) : std::to_string(failure.exit_code);
  code += fmt::format(" (pid: {})", failure.pid);
  if (failure.signal != 0) code += " (" + signal_name(failure.signal) + ")";
  return fmt::format(
      "  time      : {}\n"
      "  host      : {}\n"
      "  rank      : {} (local_rank: {})\n"
      "  exitcode  : {}\n"
      "  error_file: {}\n"
      "  traceback : {}\n",
      local_time(failure.unix_time), printable(failure.host), failure.rank.value, failure.local_rank.value, code,
      error_file_path(failure), traceback(report, failure));
}

bool same(const FailureRecord& a, const FailureRecord& b) {
  return a.rank == b.rank && a.host == b.host && a.pid == b.pid && a.round == b.round;
}

std::string others(const JobReport& report) {
  std::string text;
  std::size_t named = 0, more = 0, stopped = 0;
  for (const auto& failure : report.failures) {
    if (same(failure, *report.root_cause)) continue;
    if (failure.stopped_by_us) {
      ++stopped;
    } else if (named < kMaxOthers) {
      ++named;
      text += (text.empty() ? "" : "; ") + who_and_how(failure);
    } else {
      ++more;
    }
  }
  if (more > 0) text += fmt::format("; {} more", more);
  if (stopped > 0) text += fmt::format("{}{} stopped by ddprun", text.empty() ? "" : "; ", stopped);
  return text;
}

nlohmann::json to_object(const JobReport& report, const FailureRecord& failure) {
  nlohmann::json object = {{"rank", failure.rank.value},
                           {"local_rank", failure.local_rank.value},
                           {"group_rank", failure.group_rank.value},
                           {"round", failure.round.value},
                           {"restart_count", failure.restart_count},
                           {"host", failure.host},
                           {"pid", failure.pid},
                           {"exit_code", failure.exit_code},
                           {"signal", failure.signal},
                           {"signal_name", failure.signal != 0 ? signal_name(failure.signal) : ""},
                           {"time", utc_time(failure.unix_time)},
                           {"how", how_it_ended(failure)},
                           {"out_of_memory", failure.out_of_memory},
                           {"stopped_by_ddprun", failure.stopped_by_us},
                           {"message", failure_message(failure)},
                           {"remedy", remedy(report, failure)},
                           {"last_lines", failure.last_lines},
                           {"log_paths", failure.log_paths}};
  object["error_file"] = error_file_value(failure.error_file_json);
  if (no_worker_ran(failure)) object["rank"] = object["local_rank"] = object["pid"] = nullptr;
  return object;
}

std::string dump(const nlohmann::json& object) {
  // Workers print what they like: bytes that are not UTF-8 become U+FFFD here.
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string how_it_ended(const FailureRecord& failure) {
  if (!failure.message.empty()) return failure.message;
  if (failure.out_of_memory) {
    return failure.signal != 0 ? "killed by the kernel, out of memory (" + signal_name(failure.signal) + ")"
                               : fmt::format("exit code {} after the kernel ran out of memory", failure.exit_code);
  }
  return status_of(failure).to_string();
}

std::string failure_message(const FailureRecord& failure) {
  const ErrorFile file = parse_error_file(failure.error_file_json);
  if (!file.message.empty()) return file.message.substr(0, file.message.find('\n'));
  return find_error_line(failure.last_lines);
}

std::string remedy(const JobReport& report, const FailureRecord& failure) {
  return find_remedy(failure, report.python);
}

std::string to_text(const JobReport& report) {
  if (report.success || (!report.root_cause && report.reason.empty())) return "";
  const std::string rule = std::string(kWidth, '=') + "\n";
  if (!report.root_cause) return fmt::format("ddprun: {}\n{}", in_block(report.reason), notes_text(report));
  const FailureRecord& root = *report.root_cause;
  const std::string what = report.entrypoint.empty() ? "job" : printable(report.entrypoint);
  const std::string message = failure_message(root);
  std::string text = rule;
  text += fmt::format("{} FAILED: {}{}\n", what, who_and_how(root),
                      message.empty() ? "" : ": " + printable_without_colours(message));
  text += "Root Cause (first observed failure):\n" + labelled(report, root);
  if (const std::string advice = remedy(report, root); !advice.empty())
    text += "What to do: " + printable(advice) + "\n";
  text += last_lines(report, root);
  if (const std::string rest = others(report); !rest.empty()) text += "Others: " + rest + "\n";
  for (std::string_view rest = report.collectives; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    text += fmt::format("Collectives: {}\n", printable(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  text += notes_text(report) + earlier_attempts(report);
  if (!report.reason.empty()) text += "Job: " + in_block(report.reason) + "\n";
  if (!root.log_paths.empty()) {
    std::string paths;
    for (const auto& path : root.log_paths) paths += (paths.empty() ? "" : ", ") + printable(path);
    text += "Logs: " + paths + "\n";
  } else if (!report.log_folder.empty()) {
    text += "Logs: " + printable(report.log_folder) + "\n";
  }
  return text + rule;
}

std::string earlier_attempts(const JobReport& report) {
  std::string text;
  for (std::size_t i = 0; i + 1 < report.attempts.size(); ++i) {
    const AttemptRecord& attempt = report.attempts[i];
    text += fmt::format("Attempt {} (round {}) ended after {:.1f} s at {}: {}\n", attempt.restart_count,
                        attempt.round.value, static_cast<double>(attempt.lasted.count()) / 1000.0,
                        local_time(attempt.ended_unix_time), printable(attempt.outcome));
  }
  return text;
}

std::string to_json(const JobReport& report) {
  nlohmann::json object = {{"version", 1},
                           {"run_id", report.run_id},
                           {"host", report.host},
                           {"success", report.success},
                           {"exit_code", report.exit_code},
                           {"reason", report.reason},
                           {"entrypoint", report.entrypoint},
                           {"python", report.python},
                           {"log_folder", report.log_folder},
                           {"notes", all_notes(report)},
                           {"collectives", report.collectives},
                           {"root_cause", nullptr},
                           {"failures", nlohmann::json::array()},
                           {"attempts", nlohmann::json::array()}};
  if (report.root_cause) object["root_cause"] = to_object(report, *report.root_cause);
  for (const auto& failure : report.failures) object["failures"].push_back(to_object(report, failure));
  for (const auto& attempt : report.attempts) {
    object["attempts"].push_back({{"restart_count", attempt.restart_count},
                                  {"round", attempt.round.value},
                                  {"lasted_ms", attempt.lasted.count()},
                                  {"outcome", attempt.outcome}});
  }
  return dump(object);
}

std::string to_error_file(const FailureRecord& root) {
  nlohmann::json file = error_file_value(root.error_file_json);
  const int code = root.signal != 0 ? -root.signal : root.exit_code;
  if (!file.is_object() || !file.contains("message")) file = {{"message", how_it_ended(root)}};
  if (!file["message"].is_object()) {
    nlohmann::json text = std::move(file["message"]);
    file["message"] = {{"message", std::move(text)},
                       {"extraInfo", {{"timestamp", std::to_string(root.unix_time.count() / 1000)}}}};
  }
  file["message"]["errorCode"] = code;
  return dump(file);
}

}  // namespace ddprun::launcher
