#include "launcher/hosts/hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/system.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/hosts/node.h"
#include "launcher/hosts/remote_command.h"
#include "launcher/hosts/starter.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr std::uintmax_t kMaxListBytes = 4 << 20;

Result<std::string> read_list(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) {
    return Error(Errc::invalid_argument, fmt::format("{} is a folder", path));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error::from_errno(errno != 0 ? errno : EIO, path);
  std::string text;
  for (char c = 0; in.get(c);) {
    text += c;
    if (text.size() > kMaxListBytes) return Error(Errc::invalid_argument, fmt::format("{} is no list of hosts", path));
  }
  if (text.find('\0') != std::string::npos) {
    return Error(Errc::invalid_argument, fmt::format("{} is no text", path));
  }
  return text;
}

std::string new_run_id() { return "hosts-" + random_hex(8); }

int usage_error(const Error& error) {
  say("ddprun: " + usage_sentence(error.message()));
  return exit_code::kUsage;
}

// What the options are worth is found out here once, and not on every host: with facts that refuse nothing, since
// this host may have no GPU while the others have.
Result<LaunchOptions> check_options(const OptionTable& table, Flavour flavour, const std::vector<std::string>& words) {
  const auto environment = process_environment();
  const auto parsed = table.parse(words, environment);
  if (!parsed) return parsed.error();
  HostFacts facts;
  facts.gpu_count = [] { return Result<std::int64_t>(1); };
  facts.cpu_count = [] { return std::int64_t(1); };
  return make_launch_options(*parsed, flavour, environment, facts);
}

std::vector<std::pair<std::string, std::string>> own_environment() {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0)
      out.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

Result<hosts::StarterOptions> make_options(const OptionTable& table, const ParsedOptions& parsed, Flavour flavour,
                                           const HostsContext& context) {
  auto list = read_host_list(parsed, process_environment(), read_list);
  if (!list) return std::move(list).error();
  hosts::StarterOptions out;
  out.notes = list->notes;
  auto plan = plan_hosts(parsed, std::move(*list), new_run_id());
  if (!plan) return std::move(plan).error();
  auto shell = split_words(parsed.text("rsh"));
  if (!shell) return std::move(shell).error().with_context(parsed.source("rsh"));
  // A port of ours so that the words for the endpoint can be checked; the true one is known when the first host
  // answers.
  auto checked = check_options(table, flavour, node_arguments(table, parsed, *plan, 0, Endpoint{"first.host", 29400}));
  if (!checked) return std::move(checked).error();
  std::string folder;
  std::error_code failure;
  folder = std::filesystem::current_path(failure).string();
  if (failure) return Error(Errc::not_found, "the working directory was removed; cd to one that every host has");

  const auto seconds = [&parsed](const char* name) -> Result<std::chrono::milliseconds> {
    auto time = parse_seconds(parsed.text(name));
    if (!time) return std::move(time).error().with_context(parsed.source(name));
    if (time->count() < 1000) return Error(Errc::invalid_argument, parsed.source(name) + ": at least 1 s");
    return time;
  };
  auto start_timeout = seconds("host-start-timeout"), silence = seconds("host-silence");
  for (auto* time : {&start_timeout, &silence}) {
    if (!*time) return std::move(*time).error();
  }
  out.hosts = plan->hosts;
  for (const auto& host : plan->hosts) out.job.hosts.push_back(host.name);
  out.job.min_hosts = plan->min_hosts;
  out.job.first_serves = plan->first_serves;
  out.job.start_timeout = *start_timeout;
  out.job.silence = *silence;
  out.job.patience = checked->supervision.shutdown_timeout;
  out.remote_shell = *std::move(shell);
  out.own_path = context.own_path;
  out.ends_job = checked->supervision.signals_to_handle;
  out.only_forward = checked->supervision.signals_to_forward;
  out.port = plan->port;
  // A relative path to us means the same there: the working directory is the same, too.
  const auto variables = passed_variables(own_environment(), parsed.texts("pass-env"));
  const auto patience =
      checked->supervision.shutdown_timeout + std::chrono::seconds(10);  // its own first, and its last words
  out.order = [table = &table, parsed, plan = std::move(*plan), called = context.called, folder, variables, patience,
               silence = *silence](std::size_t host, const Endpoint& first) {
    hosts::Start order;
    order.arguments = {called};
    for (auto& word : node_arguments(*table, parsed, plan, host, first)) order.arguments.push_back(std::move(word));
    order.environment = variables;
    order.folder = folder;
    order.input = host == 0 && ::isatty(STDIN_FILENO) == 0;
    order.silence = silence;
    order.patience = patience;
    return order;
  };
  return out;
}

}  // namespace

int run_on_hosts(const OptionTable& table, const ParsedOptions& parsed, Flavour flavour, const HostsContext& context) {
  auto options = make_options(table, parsed, flavour, context);
  if (!options) return usage_error(options.error());
  const int code = hosts::start_on_hosts(std::move(*options), context.inherited);
  const bool as_torchrun =
      parsed.text("exit-code") == "torchrun" && code != exit_code::kOk && code != exit_code::kUsage;
  return as_torchrun ? exit_code::kFailure : code;
}

bool is_node_call(int argc, char** argv) { return argc == 2 && argv[1] == kNodeWord; }

int serve_as_node(const HostsContext& context) { return hosts::serve_node(context.own_path, context.inherited); }

}  // namespace ddprun::launcher
