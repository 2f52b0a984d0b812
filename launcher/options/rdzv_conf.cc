#include "launcher/options/rdzv_conf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <variant>
#include <vector>

#include "common/job_settings.h"
#include "common/rdzv_protocol.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

// Errors are what is wrong with the value.
using Read = Result<void> (*)(const std::string& value, LaunchOptions& out);
using Target =
    std::variant<milliseconds JobSettings::*, milliseconds RendezvousConf::*, std::int64_t JobSettings::*, Read>;

struct Key {
  std::string_view name;
  Target target;
  std::string_view default_text;  // where the target's own default does not say it
  std::string_view values;        // "stop|keep" for the help
  std::string_view meaning;
};

Error bad(std::string message) { return Error(Errc::invalid_argument, std::move(message)); }

Result<void> read_is_host(const std::string& value, LaunchOptions& out) {
  std::string word = value;
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view yes : {"1", "true", "t", "yes", "y"}) {
    if (word == yes) out.rdzv.conf.is_host = true;
  }
  for (const std::string_view no : {"0", "false", "f", "no", "n"}) {
    if (word == no) out.rdzv.conf.is_host = false;
  }
  if (!out.rdzv.conf.is_host) return bad(fmt::format("'{}' is neither true nor false", value));
  return {};
}

Result<void> read_on_silence(const std::string& value, LaunchOptions& out) {
  if (value != "stop" && value != "keep") return bad(fmt::format("'{}' is neither stop nor keep", value));
  out.rdzv.conf.keep_on_silence = value == "keep";
  return {};
}

Result<void> check_store_type(const std::string& value) {
  if (value == "tcp" || value == "TCP") return {};
  return bad(fmt::format("'{}' is not supported; the rendezvous speaks tcp only", value));
}

constexpr std::string_view kStaticOnly = "timeout";  // join_timeout of the static backend, as torchrun spells it

const std::array<Key, 8> kKeys{{
    {"join_timeout", &JobSettings::join_timeout, "", "", "until the minimum of nodes is here"},
    {"last_call_timeout", &JobSettings::last_call_timeout, "", "", "after the minimum, for more nodes"},
    {"close_timeout", &JobSettings::close_timeout, "", "",
     "for the other nodes' end, once no worker runs here any more"},
    {"keep_alive_interval", &JobSettings::keep_alive_interval, "", "", "how often this node says that it lives"},
    {"keep_alive_max_attempt", &JobSettings::keep_alive_max_attempt, "", "",
     "a silent rendezvous is given up after so many intervals"},
    {"read_timeout", &RendezvousConf::read_timeout, "", "", "until the rendezvous answers at all"},
    {"is_host", &read_is_host, "found out", "", "whether this node serves the endpoint"},
    {"on_silence", &read_on_silence, "`stop`", "stop|keep", "`keep`: workers run on when the rendezvous is silent"},
}};

// Of torchrun, without a meaning here; of store_type the value is looked at all the same.
constexpr std::array<std::string_view, 4> kUnused{"rank", "store_type", "heartbeat_timeout", "cas_backoff_max_seconds"};

Result<milliseconds> whole_seconds(const std::string& value) {
  auto number = parse_integer(value, 1, 365 * 24 * 3600);
  if (!number) return bad(number.error().message() + " (whole seconds, at least 1)");
  return milliseconds(std::chrono::seconds(*number));
}

Result<void> set(const Target& target, const std::string& value, LaunchOptions& out) {
  if (const auto* read = std::get_if<Read>(&target)) return (*read)(value, out);
  if (const auto* count = std::get_if<std::int64_t JobSettings::*>(&target)) {
    auto number = parse_integer(value, 1, rdzv::kMaxKeepAliveAttempts);
    if (!number) return std::move(number).error();
    out.job.*(*count) = *number;
    return {};
  }
  auto time = whole_seconds(value);
  if (!time) return std::move(time).error();
  if (const auto* of_job = std::get_if<milliseconds JobSettings::*>(&target)) {
    out.job.*(*of_job) = *time;
  } else {
    out.rdzv.conf.*std::get<milliseconds RendezvousConf::*>(target) = *time;
  }
  return {};
}

std::string default_of(const Key& key) {
  const auto seconds = [](milliseconds time) { return fmt::format("{} s", time.count() / 1000); };
  const JobSettings job;
  if (const auto* time = std::get_if<milliseconds JobSettings::*>(&key.target)) return seconds(job.*(*time));
  if (const auto* count = std::get_if<std::int64_t JobSettings::*>(&key.target)) return std::to_string(job.*(*count));
  if (const auto* time = std::get_if<milliseconds RendezvousConf::*>(&key.target)) {
    return seconds(RendezvousConf().*(*time));
  }
  return std::string(key.default_text);
}

}  // namespace

Result<void> read_rdzv_conf(const ParsedOptions& parsed, LaunchOptions& out) {
  const auto source = parsed.source("rdzv-conf");
  std::vector<std::string> known(kUnused.begin(), kUnused.end());
  for (const Key& key : kKeys) known.emplace_back(key.name);
  known.emplace_back(kStaticOnly);
  for (const auto& item : split(parsed.text("rdzv-conf"), ',')) {
    const auto equals = item.find('=');
    std::string name = trimmed(item.substr(0, equals));
    const std::string value = equals == std::string::npos ? "" : trimmed(item.substr(equals + 1));
    if (name.empty() || value.empty()) return bad(fmt::format("{}: '{}' is not KEY=VALUE", source, item));
    const std::string given = name;
    if (name == kStaticOnly && out.job.backend == RdzvBackend::static_ranks) name = "join_timeout";
    const auto key = std::find_if(kKeys.begin(), kKeys.end(), [&name](const Key& k) { return k.name == name; });
    Result<void> done;
    if (key != kKeys.end()) {
      done = set(key->target, value, out);
    } else if (name == "store_type") {
      done = check_store_type(value);
    } else if (std::find(known.begin(), known.end(), name) != known.end()) {
      out.warnings.push_back(fmt::format("{}: {} means nothing here and is not used", source, name));
    } else {
      const auto near = nearest_name(name, known);
      out.warnings.push_back(fmt::format("{}: unknown key '{}' is not used{}", source, name,
                                         near ? fmt::format(" (did you mean {}?)", *near) : ""));
    }
    if (!done) return bad(fmt::format("{}: {}: {}", source, given, done.error().message()));
  }
  if (out.job.lease() > kMaxLease) return bad(fmt::format("{}: {}", source, lease_too_long(out.job)));
  return {};
}

std::string rdzv_conf_help() {
  std::string text;
  for (const Key& key : kKeys) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", key.name, key.values.empty() ? "" : "=", key.values);
  }
  return text + fmt::format(", {} (static)", kStaticOnly);
}

std::string rdzv_conf_markdown() {
  std::string text = "| key | default | meaning |\n| --- | --- | --- |\n";
  for (const Key& key : kKeys) {
    const std::string also = key.name == "join_timeout" ? fmt::format(" (static: {} s, also spelled `{}`)",
                                                                      kStaticJoinTimeout.count(), kStaticOnly)
                                                        : "";
    text += fmt::format("| `{}` | {}{} | {} |\n", key.name, default_of(key), also, key.meaning);
  }
  return text;
}

}  // namespace ddprun::launcher
