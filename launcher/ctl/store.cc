#include "launcher/ctl/store.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/standard_fds.h"
#include "common/store_client.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

constexpr std::string_view kUsage =
    "ddpctl store get KEY | set KEY VALUE | keys [PREFIX] | wait KEY... | stats  [--json] [--raw] [--timeout-ms N]";
constexpr std::string_view kHelp = R"(
Options (hyphens or underscores):
  --json
      answers as one JSON object; bytes that are no UTF-8 as {"hex": "..."}
  --raw
      KEY and PREFIX are keys as the server has them. Without it they are keys as torch's TCPStore client names them,
      which puts a '/' in front of each. Values are always printed as they are
  --timeout-ms N
      how long to wait for the server and for keys that are not there yet [default: 10000]
  --help
      print this and exit
What follows -- is no option. Exit code 69: no server, or the key did not come in time.
)";
constexpr std::chrono::milliseconds kDefaultTimeout{10000};

struct Request {
  std::string verb;
  std::vector<std::string> words;
  bool json_output = false;
  bool raw = false;
  bool help = false;
  std::chrono::milliseconds timeout = kDefaultTimeout;
};

Result<Request> parse(std::span<const std::string> arguments) {
  Request request;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    std::optional<std::string> limit;
    if (word == "--json") {
      request.json_output = true;
    } else if (word == "--raw") {
      request.raw = true;
    } else if (word == "--help" || word == "-h") {
      request.help = true;
      return request;
    } else if (word == "--timeout-ms" || word == "--timeout_ms") {
      if (i + 1 == arguments.size()) return Error(Errc::invalid_argument, word + " needs a number of milliseconds");
      limit = arguments[++i];
    } else if (word.starts_with("--timeout-ms=") || word.starts_with("--timeout_ms=")) {
      limit = word.substr(word.find('=') + 1);
    } else if (word == "--") {
      // What follows is never an option: keys and values may begin with "--".
      request.words.insert(request.words.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                           arguments.end());
      break;
    } else if (word.starts_with("--")) {
      return Error(Errc::invalid_argument,
                   fmt::format("unknown option {} (what is no option goes behind --); usage: {}", word, kUsage));
    } else {
      request.words.push_back(word);
    }
    if (limit) {
      std::int64_t ms = 0;
      const auto parsed = std::from_chars(limit->data(), limit->data() + limit->size(), ms);
      if (parsed.ec != std::errc() || parsed.ptr != limit->data() + limit->size() || ms < 0 || ms > 86400000) {
        return Error(
            Errc::invalid_argument,
            fmt::format("--timeout-ms is '{}': it must be a number of milliseconds from 0 to 86400000", *limit));
      }
      request.timeout = std::chrono::milliseconds(ms);
    }
  }
  if (request.words.empty()) return Error(Errc::invalid_argument, fmt::format("what? usage: {}", kUsage));
  request.verb = request.words.front();
  request.words.erase(request.words.begin());
  const std::size_t n = request.words.size();
  const bool fits = (request.verb == "get" && n == 1) || (request.verb == "set" && n == 2) ||
                    (request.verb == "keys" && n <= 1) || (request.verb == "wait" && n >= 1) ||
                    (request.verb == "stats" && n == 0);
  if (!fits) return Error(Errc::invalid_argument, fmt::format("usage: {}", kUsage));
  return request;
}

// JSON text holds characters, a store holds bytes: what is no UTF-8 goes out as an object with its hex digits.
json json_bytes(std::string_view bytes) {
  const json text = bytes;
  try {
    (void)text.dump();
    return text;
  } catch (const json::exception&) {
    std::string digits;
    for (const char c : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return json{{"hex", digits}};
  }
}

void print(std::string_view text) {
  print_output(text);
  print_output("\n");
}

Result<void> run(StoreClient& store, const Request& request) {
  const TimePoint deadline = SteadyClock::now() + request.timeout;
  if (request.verb == "get") {
    auto value = store.get(request.words[0], deadline);
    if (!value) return std::move(value).error();
    if (request.json_output) {
      print(json{{"key", json_bytes(request.words[0])}, {"value", json_bytes(*value)}}.dump());
    } else {
      print(*value);
    }
  } else if (request.verb == "set") {
    if (auto set = store.set_confirmed(request.words[0], request.words[1]); !set) return set;
    if (request.json_output) {
      print(json{{"key", json_bytes(request.words[0])}, {"bytes", request.words[1].size()}}.dump());
    }
  } else if (request.verb == "wait") {
    if (auto ready = store.wait(request.words, deadline); !ready) return ready;
    if (request.json_output) {
      json keys = json::array();
      for (const std::string& key : request.words) keys.push_back(json_bytes(key));
      print(json{{"ready", keys}}.dump());
    }
  } else if (request.verb == "keys") {
    auto keys = store.list_keys();
    if (!keys) return std::move(keys).error();
    json list = json::array();
    for (const std::string& key : *keys) {
      if (!request.words.empty() && !key.starts_with(request.words[0])) continue;
      if (request.json_output) {
        list.push_back(json_bytes(key));
      } else {
        print(key);
      }
    }
    if (request.json_output) print(json{{"keys", list}}.dump());
  } else {
    // What every server of the protocol can say, torch's too; the daemon's own numbers are in `ddpctl status` and on
    // its metrics port.
    auto count = store.num_keys();
    if (!count) return std::move(count).error();
    const TimePoint start = SteadyClock::now();
    if (auto pinged = store.ping(); !pinged) return pinged;
    const auto round_trip = std::chrono::duration<double, std::micro>(SteadyClock::now() - start).count();
    auto keys = store.list_keys();
    if (!keys) return std::move(keys).error();
    std::size_t key_bytes = 0;
    for (const std::string& key : *keys) key_bytes += key.size();
    if (request.json_output) {
      print(json{{"endpoint", store.options().endpoint.to_string()},
                 {"keys", *count},
                 {"key_bytes", key_bytes},
                 {"round_trip_us", round_trip}}
                .dump());
    } else {
      print(fmt::format("store {}: keys={} key_bytes={} round_trip_us={:.0f}", store.options().endpoint.to_string(),
                        *count, key_bytes, round_trip));
    }
  }
  return {};
}

int fail(const Error& error) {
  say("ddpctl: " + printable(error.message()));
  switch (error.code()) {
    case Errc::invalid_argument:
      return exit_code::kUsage;
    case Errc::refused:
    case Errc::not_found:
    case Errc::peer_closed:
    case Errc::timed_out:
      return exit_code::kUnavailable;
    default:
      return exit_code::kFailure;
  }
}

}  // namespace

int ctl_store(const Endpoint& endpoint, std::span<const std::string> arguments) {
  auto request = parse(arguments);
  if (!request) return fail(request.error());
  if (request->help) {
    print(fmt::format("Usage: {}\n{}", kUsage, kHelp));
    return exit_code::kOk;
  }
  StoreClientOptions options;
  options.endpoint = endpoint;
  options.prefix = request->raw || request->verb == "stats" ? "" : "/";
  options.connect_timeout = request->timeout;
  auto store = StoreClient::connect(options);
  if (!store) return fail(store.error());
  if (auto done = run(*store, *request); !done) return fail(done.error());
  return exit_code::kOk;
}

}  // namespace ddprun::launcher
