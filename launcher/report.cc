#include "launcher/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/unique_fd.h"
#include "launcher/error_file.h"
#include "launcher/process.h"
#include "launcher/remedy.h"

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

std::string rank_and_host(const FailureRecord& failure) {
  return fmt::format("rank {}{}", failure.rank.value, failure.host.empty() ? "" : " on " + failure.host);
}

std::string error_file_path(const FailureRecord& failure) {
  for (const auto& path : failure.log_paths) {
    if (path.size() >= 10 && path.compare(path.size() - 10, 10, "error.json") == 0) return path;
  }
  return failure.error_file_json.empty() ? "<N/A>" : "(temporary, shown below)";
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
  for (std::size_t i = 0; i < lines.size(); ++i) out += (i == 0 ? "" : "\n" + indent) + std::string(lines[i]);
  return out;
}

std::string traceback(const FailureRecord& failure) {
  const ErrorFile file = parse_error_file(failure.error_file_json);
  if (!file.callstack.empty()) return indented(file.callstack, "    ", kMaxTracebackLines);
  if (!file.message.empty()) return indented(file.message, "    ", kMaxTracebackLines);
  if (failure.signal != 0) {
    return fmt::format("Signal {} ({}) received by PID {}", failure.signal, signal_name(failure.signal), failure.pid);
  }
  const std::string message = failure_message(failure);
  return message.empty() ? "<N/A>" : message;
}

// The block with torchrun's labels, which people and log parsers know.
std::string labelled(const FailureRecord& failure) {
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
      local_time(failure.unix_time), failure.host, failure.rank.value, failure.local_rank.value, code,
      error_file_path(failure), traceback(failure));
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
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", rank_and_host(failure), how_it_ended(failure));
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
  return object;
}

std::string dump(const nlohmann::json& object) {
  // Workers print what they like: bytes that are not UTF-8 become U+FFFD here.
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<void> write_whole(const std::string& path, const std::string& text) {
  // A device, a pipe or a link (/dev/null, /dev/stdout) is written to; a rename would put a file in its place.
  struct stat status = {};
  const bool special = ::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  const std::string beside = special ? path : path + ".tmp." + std::to_string(::getpid());
  // What a link in /dev leads to (a file that our output goes to) is not to be emptied.
  const int how = special && path.starts_with("/dev/") ? O_APPEND : O_CREAT | O_TRUNC;
  const UniqueFd fd(::open(beside.c_str(), O_WRONLY | how | O_CLOEXEC, 0666));
  if (!fd) return Error::from_errno(errno, "cannot write " + path);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      if (!special) ::unlink(beside.c_str());
      return Error::from_errno(error, "cannot write " + path);
    }
    done += static_cast<std::size_t>(n);
  }
  if (!special && ::rename(beside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(beside.c_str());
    return Error::from_errno(error, "cannot write " + path);
  }
  return {};
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
  if (!report.root_cause) return fmt::format("ddprun: {}\n", report.reason);
  const FailureRecord& root = *report.root_cause;
  const std::string what = report.entrypoint.empty() ? "job" : report.entrypoint;
  const std::string message = failure_message(root);
  std::string text = rule;
  text += fmt::format("{} FAILED: {}: {}{}\n", what, rank_and_host(root), how_it_ended(root),
                      message.empty() ? "" : ": " + message);
  text += "Root Cause (first observed failure):\n" + labelled(root);
  if (const std::string advice = remedy(report, root); !advice.empty()) text += "What to do: " + advice + "\n";
  if (!root.last_lines.empty()) {
    text += fmt::format("Last {} of rank {}:\n",
                        root.last_lines.size() == 1 ? "line" : fmt::format("{} lines", root.last_lines.size()),
                        root.rank.value);
    for (const auto& line : root.last_lines) text += "  | " + line + "\n";
  }
  if (const std::string rest = others(report); !rest.empty()) text += "Others: " + rest + "\n";
  for (std::string_view rest = report.collectives; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    text += fmt::format("Collectives: {}\n", rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  text += earlier_attempts(report);
  if (!report.reason.empty()) text += "Job: " + report.reason + "\n";
  if (!root.log_paths.empty()) {
    std::string paths;
    for (const auto& path : root.log_paths) paths += (paths.empty() ? "" : ", ") + path;
    text += "Logs: " + paths + "\n";
  } else if (!report.log_folder.empty()) {
    text += "Logs: " + report.log_folder + "\n";
  }
  return text + rule;
}

std::string earlier_attempts(const JobReport& report) {
  std::string text;
  for (std::size_t i = 0; i + 1 < report.attempts.size(); ++i) {
    const AttemptRecord& attempt = report.attempts[i];
    text += fmt::format("Attempt {} (round {}) ended after {:.1f} s at {}: {}\n", attempt.restart_count,
                        attempt.round.value, static_cast<double>(attempt.lasted.count()) / 1000.0,
                        local_time(attempt.ended_unix_time), attempt.outcome);
  }
  return text;
}

std::string to_json(const JobReport& report) {
  nlohmann::json object = {{"version", 1},
                           {"run_id", report.run_id},
                           {"success", report.success},
                           {"exit_code", report.exit_code},
                           {"reason", report.reason},
                           {"entrypoint", report.entrypoint},
                           {"python", report.python},
                           {"log_folder", report.log_folder},
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

Result<void> check_report_file(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return Error(Errc::invalid_argument, path + " is a folder; give a file");
  }
  // A file is replaced, so its folder has to be writable; a device, pipe or link is written to.
  const bool there = ::lstat(path.c_str(), &status) == 0;
  std::string needed = path;
  if (!there || S_ISREG(status.st_mode)) {
    const auto slash = path.rfind('/');
    needed = slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
  }
  if (::access(needed.c_str(), W_OK) != 0) return Error::from_errno(errno, "cannot write " + path);
  return {};
}

Result<void> write_report_file(const std::string& path, const JobReport& report) {
  return write_whole(path, to_json(report));
}

Result<void> write_own_error_file(const std::string& path, const JobReport& report) {
  if (!report.root_cause) return {};
  const FailureRecord& root = *report.root_cause;
  nlohmann::json file = error_file_value(root.error_file_json);
  const int code = root.signal != 0 ? -root.signal : root.exit_code;
  if (!file.is_object() || !file.contains("message")) {
    file = {{"message", how_it_ended(root)}};
  }
  if (!file["message"].is_object()) {
    nlohmann::json text = std::move(file["message"]);
    file["message"] = {{"message", std::move(text)},
                       {"extraInfo", {{"timestamp", std::to_string(root.unix_time.count() / 1000)}}}};
  }
  file["message"]["errorCode"] = code;
  return write_whole(path, dump(file));
}

}  // namespace ddprun::launcher
