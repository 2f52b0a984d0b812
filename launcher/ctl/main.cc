#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <exception>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/exit_code.h"
#include "common/guarded_main.h"
#include "common/inherited_state.h"
#include "common/log.h"
#include "common/options.h"
#include "common/printable.h"
#include "common/standard_fds.h"
#include "launcher/ctl/client.h"
#include "launcher/ctl/doctor.h"
#include "launcher/ctl/flight.h"
#include "launcher/ctl/status.h"
#include "launcher/ctl/store.h"

// ddpctl: the operator's tool. One table of commands; each gets what follows its name.
namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLimit{5'000};
constexpr milliseconds kFlightLimit{60'000};  // between two messages; the daemon sends one at least every 5 s or so
constexpr milliseconds kWatchPeriod{500};
constexpr const char* kTokenHelp = "the daemon's secret; mode 600";

int complain(int code, const std::string& text, const std::string& lines_below = "") {
  say("ddpctl: " + usage_sentence(text) + lines_below);
  return code;
}

using Arguments = std::span<const std::string>;

Result<ParsedOptions> parse(const std::string& command, const std::string& synopsis, std::vector<OptionSpec> options,
                            Arguments arguments) {
  const OptionTable table("ddpctl " + command, "ddpctl " + command + " " + synopsis, std::move(options),
                          RestPolicy::list);
  auto parsed = table.parse(arguments, process_environment());
  if (parsed && parsed->flag("help")) print_output(table.help());
  return parsed;
}

OptionSpec flag(std::string name, std::string help) {
  return make_option(std::move(name), OptionKind::flag, "", "", std::move(help));
}

OptionSpec text(std::string name, std::string value, std::string help) {
  return make_option(std::move(name), OptionKind::text, "", std::move(value), std::move(help));
}

Result<rdzv::Reply> ask(const Endpoint& endpoint, const rdzv::OperatorMessage& message) {
  auto client = CtlClient::connect(endpoint, kLimit);
  if (!client) return std::move(client).error();
  return client->ask(message, kLimit);
}

int status(const Endpoint& endpoint, Arguments arguments) {
  auto parsed = parse("status", "[RUN_ID] [--watch] [--json]",
                      {flag("watch", "print again whenever something changes, until interrupted"),
                       flag("json", "the daemon's own JSON")},
                      arguments);
  if (!parsed) return complain(exit_code::kUsage, parsed.error().message());
  if (parsed->flag("help")) return exit_code::kOk;
  if (parsed->rest().size() > 1) return complain(exit_code::kUsage, "status: at most one RUN_ID");
  auto client = CtlClient::connect(endpoint, kLimit);
  if (!client) return complain(exit_code::kUnavailable, client.error().message());
  rdzv::StatusRequest request;
  if (!parsed->rest().empty()) request.run_id = parsed->rest().front();
  std::string shown;
  while (true) {
    auto reply = client->ask(request, kLimit);
    if (!reply) return complain(exit_code::kUnavailable, reply.error().message());
    std::string table = parsed->flag("json") ? reply->text + "\n" : status_table(reply->text);
    if (!parsed->flag("watch") && !request.run_id.empty() && table == kNoJobs) {
      return complain(exit_code::kFailure, fmt::format("no job '{}' is known here", request.run_id));
    }
    if (!parsed->flag("watch")) return print_output(table), exit_code::kOk;
    // Ages change all the time; they are no news.
    std::string stable = table;
    for (std::size_t at = stable.find(" ms ago"); at != std::string::npos; at = stable.find(" ms ago", at + 1)) {
      std::size_t begin = at;
      while (begin > 0 && stable[begin - 1] >= '0' && stable[begin - 1] <= '9') stable[--begin] = '.';
    }
    if (stable.size() != shown.size() || stable != shown) {
      print_output(table + "\n");
      if (std::fflush(stdout) != 0) return exit_code::kOk;  // nobody reads it; main() says so
      shown = std::move(stable);
    }
    std::this_thread::sleep_for(kWatchPeriod);
  }
}

Result<std::string> token_of(const ParsedOptions& parsed) {
  if (!parsed.given("token-file")) return std::string();
  std::ifstream file(parsed.text("token-file"));
  struct stat info {};
  if (!file || ::stat(parsed.text("token-file").c_str(), &info) != 0) {
    return Error(Errc::not_found, "--token-file " + parsed.text("token-file") + " cannot be read");
  }
  if ((info.st_mode & 077) != 0) {
    return Error(Errc::invalid_argument,
                 "--token-file " + parsed.text("token-file") + ": others can read it; chmod 600 it");
  }
  std::string token((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  return token;
}

int command(const Endpoint& endpoint, const rdzv::OperatorMessage& message) {
  auto reply = ask(endpoint, message);
  if (!reply) return complain(exit_code::kUnavailable, reply.error().message());
  if (!reply->ok) return complain(exit_code::kFailure, reply->text);
  print_output(printable_lines(reply->text) + "\n");
  return exit_code::kOk;
}

int drain(const Endpoint& endpoint, Arguments arguments) {
  auto parsed =
      parse("drain", "NODE [--rdzv-id RUN_ID] [--token-file FILE]",
            {text("rdzv-id", "RUN_ID",
                  "only in this job; without it a host name or an address means that host's nodes of all jobs"),
             text("token-file", "FILE", kTokenHelp)},
            arguments);
  if (!parsed) return complain(exit_code::kUsage, parsed.error().message());
  if (parsed->flag("help")) return exit_code::kOk;
  if (parsed->rest().size() != 1)
    return complain(exit_code::kUsage,
                    "drain: name one NODE (host name, address or node id; with --rdzv-id also its group rank)");
  auto token = token_of(*parsed);
  if (!token) return complain(exit_code::kUsage, token.error().message());
  rdzv::DrainRequest request;
  request.run_id = parsed->text("rdzv-id");
  request.node = parsed->rest().front();
  request.token = std::move(*token);
  return command(endpoint, request);
}

int stop(const Endpoint& endpoint, Arguments arguments) {
  auto parsed = parse("stop", "RUN_ID [--token-file FILE]", {text("token-file", "FILE", kTokenHelp)}, arguments);
  if (!parsed) return complain(exit_code::kUsage, parsed.error().message());
  if (parsed->flag("help")) return exit_code::kOk;
  if (parsed->rest().size() != 1) return complain(exit_code::kUsage, "stop: name one RUN_ID");
  auto token = token_of(*parsed);
  if (!token) return complain(exit_code::kUsage, token.error().message());
  rdzv::StopRequest request;
  request.run_id = parsed->rest().front();
  request.token = std::move(*token);
  return command(endpoint, request);
}

int flight(const Endpoint& endpoint, Arguments arguments) {
  OptionSpec last = text("last", "N", "collectives of each worker");
  last.kind = OptionKind::integer;
  last.default_text = "8";
  last.min_value = 1;
  last.max_value = 1024;
  auto parsed = parse("flight", "RUN_ID [--last N]", {last}, arguments);
  if (!parsed) return complain(exit_code::kUsage, parsed.error().message());
  if (parsed->flag("help")) return exit_code::kOk;
  if (parsed->rest().size() != 1) return complain(exit_code::kUsage, "flight: name one RUN_ID");
  auto client = CtlClient::connect(endpoint, kLimit);
  if (!client) return complain(exit_code::kUnavailable, client.error().message());
  rdzv::FlightQuery query;
  query.run_id = parsed->rest().front();
  std::vector<rdzv::FlightPart> parts;
  auto reply = client->ask(query, kFlightLimit, [&parts](rdzv::ServerMessage message) {
    if (auto* part = std::get_if<rdzv::FlightPart>(&message)) parts.push_back(std::move(*part));
  });
  // A node that does not answer, or a daemon that ends meanwhile, is no reason to keep back what others sent: the
  // silent node may be the one that all wait for.
  if ((reply && reply->ok) || !parts.empty()) {
    print_output(flight_text(parts, static_cast<std::size_t>(parsed->integer("last"))));
  }
  if (!reply) return complain(exit_code::kUnavailable, reply.error().message());
  return reply->ok ? exit_code::kOk : complain(exit_code::kFailure, reply->text);
}

int roster(const Endpoint& endpoint, Arguments arguments) {
  auto parsed = parse("roster", "RUN_ID", {}, arguments);
  if (!parsed) return complain(exit_code::kUsage, parsed.error().message());
  if (parsed->flag("help")) return exit_code::kOk;
  if (parsed->rest().size() != 1) return complain(exit_code::kUsage, "roster: name one RUN_ID");
  auto client = CtlClient::connect(endpoint, kLimit);
  if (!client) return complain(exit_code::kUnavailable, client.error().message());
  rdzv::RosterRequest request;
  request.run_id = parsed->rest().front();
  bool first = true;
  auto reply = client->ask(request, kLimit, [&first](rdzv::ServerMessage message) {
    const auto* page = std::get_if<rdzv::Roster>(&message);
    if (page == nullptr) return;
    print_output(roster_text(*page, std::exchange(first, false)));
  });
  if (!reply) return complain(exit_code::kUnavailable, reply.error().message());
  return reply->ok ? exit_code::kOk : complain(exit_code::kFailure, reply->text);
}

struct Command {
  const char* name;
  const char* help;
  int (*run)(const Endpoint& endpoint, Arguments arguments);
};

constexpr std::array kCommands = {
    Command{"status", "[RUN_ID] [--watch] [--json]   jobs, rounds, nodes, ranks, restarts, what each waits for",
            status},
    Command{"roster", "RUN_ID                        each node's place: group rank, ranks, address; one line a node",
            roster},
    Command{"drain",
            "NODE [--rdzv-id RUN_ID]       stop a node's workers politely; the jobs go on without it. NODE: host name, "
            "address, node id, with --rdzv-id also group rank",
            drain},
    Command{"stop", "RUN_ID                        stop a job on all its nodes", stop},
    Command{"flight", "RUN_ID [--last N]             each worker's last collectives, and who is missing where", flight},
    Command{"doctor",
            "[--log-dir DIR]               can jobs run on this host: GPUs, limits, names, room, ports; 0: yes, 78: no",
            ctl_doctor},
    Command{"store", "get|set|keys|wait|stats ...   look into the key-value store", ctl_store},
};

std::string commands_help() {
  std::string out = "\nCommands:\n";
  for (const Command& c : kCommands) out += fmt::format("  {:<8} {}\n", c.name, c.help);
  return out;
}

int run(int argc, char** argv) {
  settle_inherited_state();
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  OptionSpec endpoint_option = text("rdzv-endpoint", "HOST:PORT", "the rendezvous; ddprun logs its own at the start");
  endpoint_option.default_text = "127.0.0.1:29400";
  endpoint_option.env = "PET_RDZV_ENDPOINT";
  const OptionTable table("ddpctl", "ddpctl [--rdzv-endpoint HOST:PORT] COMMAND ...", {endpoint_option},
                          RestPolicy::script_args);
  auto parsed = table.parse(arguments, process_environment());
  if (!parsed) return complain(exit_code::kUsage, parsed.error().message());
  if (parsed->flag("help")) return print_output(table.help() + commands_help()), exit_code::kOk;
  if (parsed->flag("version")) return print_output(version_text("ddpctl")), exit_code::kOk;
  if (parsed->rest().empty()) return complain(exit_code::kUsage, "no command given", commands_help());
  for (const std::string& word : parsed->rest()) {
    if (word == "--") break;
    if (word == "--rdzv-endpoint" || word.starts_with("--rdzv-endpoint=")) {
      return complain(exit_code::kUsage, fmt::format("--rdzv-endpoint goes before the command: ddpctl --rdzv-endpoint "
                                                     "HOST:PORT {} ...",
                                                     parsed->rest().front()));
    }
  }
  auto endpoint = Endpoint::parse(parsed->text("rdzv-endpoint"), 29400);
  if (!endpoint) return complain(exit_code::kUsage, endpoint.error().message());
  std::vector<std::string> names;
  for (const Command& c : kCommands) {
    if (parsed->rest().front() == c.name) return c.run(*endpoint, Arguments(parsed->rest()).subspan(1));
    names.emplace_back(c.name);
  }
  const auto near = nearest_name(parsed->rest().front(), names);
  return complain(
      exit_code::kUsage,
      fmt::format("unknown command '{}'{}", parsed->rest().front(), near ? "; did you mean " + *near + "?" : ""),
      commands_help());
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  return ddprun::guarded_main(
      "ddpctl", [argc, argv] { return ddprun::exit_code_after_output("ddpctl", ddprun::launcher::run(argc, argv)); });
}
