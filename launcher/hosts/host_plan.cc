#include "launcher/hosts/host_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

// Read here, and done with.
constexpr std::array<std::string_view, 8> kOwnOptions{"hosts",    "hostfile",           "include",     "exclude", "rsh",
                                                      "pass-env", "host-start-timeout", "host-silence"};
constexpr std::uint16_t kStaticPort = 29500;

Error bad(const std::string& source, std::string_view message) {
  return Error(Errc::invalid_argument, usage_sentence(fmt::format("{}: {}", source, message)));
}

Result<HostList> from_batch_system(const EnvLookup& env, const ReadFile& read) {
  using Parse = Result<HostList> (*)(std::string_view, const std::string&);
  struct Source {
    const char* variable;
    Parse parse;
  };
  constexpr std::array<Source, 3> kSources{
      {{"PBS_NODEFILE", parse_slot_file}, {"LSB_DJOB_HOSTFILE", parse_slot_file}, {"PE_HOSTFILE", parse_pe_hostfile}}};
  for (const auto& [variable, parse] : kSources) {
    const auto path = env(variable);
    if (!path || path->empty()) continue;
    auto text = read(*path);
    if (!text) return bad(fmt::format("--hosts=auto ({})", variable), text.error().message());
    return parse(*text, fmt::format("{} ({})", *path, variable));
  }
  return bad("--hosts",
             "auto takes the list of PBS, LSF or Grid Engine, and none of PBS_NODEFILE, LSB_DJOB_HOSTFILE and "
             "PE_HOSTFILE is set here: write --hosts=a:2,b:2 or --hostfile=FILE (under Slurm and MPI: srun ddprun, "
             "mpirun -N 1 ddprun)");
}

bool is_own(std::string_view name) {
  return std::find(kOwnOptions.begin(), kOwnOptions.end(), name) != kOwnOptions.end();
}

}  // namespace

bool has_host_list(const ParsedOptions& parsed) { return parsed.given("hosts") || parsed.given("hostfile"); }

Result<HostList> read_host_list(const ParsedOptions& parsed, const EnvLookup& env, const ReadFile& read) {
  Result<HostList> list = HostList();
  if (parsed.given("hosts") && parsed.given("hostfile")) {
    // One on the command line beats a variable that lies around.
    const bool hosts_typed = parsed.source("hosts").starts_with("-");
    if (hosts_typed == parsed.source("hostfile").starts_with("-")) {
      return bad(parsed.source("hosts"), fmt::format("and {}: give one of them", parsed.source("hostfile")));
    }
    if (!hosts_typed) {
      const std::string& path = parsed.text("hostfile");
      auto text = read(path);
      if (!text) return bad(parsed.source("hostfile"), text.error().message());
      list = parse_hostfile(*text, path);
    } else {
      list = parsed.text("hosts") == "auto" ? from_batch_system(env, read)
                                            : parse_hosts(parsed.text("hosts"), parsed.source("hosts"));
    }
  } else if (parsed.given("hostfile")) {
    auto text = read(parsed.text("hostfile"));
    if (!text) return bad(parsed.source("hostfile"), text.error().message());
    list = parse_hostfile(*text, parsed.text("hostfile"));
  } else {
    list = parsed.text("hosts") == "auto" ? from_batch_system(env, read)
                                          : parse_hosts(parsed.text("hosts"), parsed.source("hosts"));
  }
  if (!list) return list;
  if (auto done = select_hosts(*list, parsed.text("include"), parsed.text("exclude")); !done) {
    return std::move(done).error();
  }
  return list;
}

Result<HostPlan> plan_hosts(const ParsedOptions& parsed, HostList list, const std::string& run_id) {
  HostPlan plan;
  plan.hosts = std::move(list.hosts);
  for (const char* name : {"node-rank", "standalone", "local-addr"}) {
    if (parsed.given(name) && parsed.source(name).starts_with("-")) {
      return bad(parsed.source(name),
                 "is for one node; with a list of hosts each node has its own, and gets it from us");
    }
  }
  plan.min_hosts = plan.hosts.size();
  if (parsed.given("nnodes")) {
    const auto fields = split(parsed.text("nnodes"), ':');
    const auto min = parse_integer(fields.front(), 1, 1'000'000), max = parse_integer(fields.back(), 1, 1'000'000);
    if (fields.size() > 2 || !min || !max) {
      return bad(parsed.source("nnodes"), fmt::format("'{}' is neither N nor MIN:MAX", parsed.text("nnodes")));
    }
    if (static_cast<std::size_t>(*max) != plan.hosts.size() || *min > *max) {
      return bad(parsed.source("nnodes"),
                 fmt::format("'{}', but the list has {} {}: leave it out, or write MIN:{} for a job that may go on "
                             "with fewer",
                             parsed.text("nnodes"), plan.hosts.size(), plan.hosts.size() == 1 ? "host" : "hosts",
                             plan.hosts.size()));
    }
    plan.min_hosts = static_cast<std::size_t>(*min);
  }
  plan.run_id = parsed.given("rdzv-id") && parsed.text("rdzv-id") != "none" ? parsed.text("rdzv-id") : run_id;
  plan.static_ranks = parsed.given("rdzv-backend") && parsed.text("rdzv-backend") == "static";
  if (plan.static_ranks) {
    if (plan.min_hosts != plan.hosts.size()) {
      return bad(parsed.source("rdzv-backend"), "static ranks need every host: write --rdzv-backend=c10d for MIN:MAX");
    }
    plan.port = parsed.given("master-port") ? static_cast<std::uint16_t>(parsed.integer("master-port")) : 0;
  } else {
    plan.first_serves = !parsed.given("rdzv-endpoint");
  }
  return plan;
}

std::vector<std::string> node_arguments(const OptionTable& table, const ParsedOptions& parsed, const HostPlan& plan,
                                        std::size_t index, const Endpoint& first) {
  const Host& host = plan.hosts[index];
  std::vector<std::string> out;
  std::optional<std::string> conf;
  for (const auto& spec : table.options()) {
    // What came by a variable goes on by that variable.
    if (!parsed.given(spec.name) || !parsed.source(spec.name).starts_with("-") || is_own(spec.name)) continue;
    if (spec.name == "nnodes" || spec.name == "rdzv-id") continue;
    if (spec.name == "rdzv-conf") {
      conf = parsed.text(spec.name);
    } else if (spec.kind == OptionKind::flag) {
      out.push_back("--" + spec.name);
    } else if (spec.repeatable) {
      for (const auto& value : parsed.texts(spec.name)) out.push_back(fmt::format("--{}={}", spec.name, value));
    } else {
      out.push_back(fmt::format("--{}={}", spec.name, parsed.text(spec.name)));
    }
  }
  if (!conf && parsed.given("rdzv-conf")) conf = parsed.text("rdzv-conf");
  const std::size_t all = plan.hosts.size();
  out.push_back(plan.min_hosts == all ? fmt::format("--nnodes={}", all)
                                      : fmt::format("--nnodes={}:{}", plan.min_hosts, all));
  out.push_back(fmt::format("--node-rank={}", index));
  out.push_back("--rdzv-id=" + plan.run_id);
  if (host.slots && !parsed.given("nproc-per-node")) out.push_back(fmt::format("--nproc-per-node={}", *host.slots));
  if (!host.devices.empty() && !parsed.given("devices")) {
    std::string devices;
    for (const auto& device : host.devices) devices += (devices.empty() ? "" : ",") + device;
    out.push_back("--devices=" + devices);
  }
  if (plan.static_ranks) {
    if (!parsed.given("master-addr")) out.push_back("--master-addr=" + first.host);
    if (!parsed.given("master-port")) {
      out.push_back(fmt::format("--master-port={}", first.port != 0 ? first.port : kStaticPort));
    }
  } else {
    if (!parsed.given("rdzv-backend")) out.push_back("--rdzv-backend=c10d");
    if (plan.first_serves) {
      out.push_back("--rdzv-endpoint=" + first.to_string());
      const std::string is_host = fmt::format("is_host={}", index == 0 ? 1 : 0);
      if (!conf || conf->find("is_host") == std::string::npos)
        conf = conf && !conf->empty() ? *conf + "," + is_host : is_host;
    }
  }
  if (conf && !conf->empty()) out.push_back("--rdzv-conf=" + *conf);
  // The nodes are told all that an engine could tell them.
  if (!parsed.given("engine")) out.push_back("--engine=none");
  out.push_back("--");
  out.insert(out.end(), parsed.rest().begin(), parsed.rest().end());
  return out;
}

bool is_for_starter_only(std::string_view name) {
  constexpr std::array<std::string_view, 13> kNames{
      "DDPRUN_HOSTS",  "DDPRUN_HOSTFILE", "DDPRUN_INCLUDE",      "DDPRUN_EXCLUDE",
      "DDPRUN_RSH",    "DDPRUN_PASS_ENV", "DDPRUN_HOST_SILENCE", "DDPRUN_HOST_START_TIMEOUT",
      "PET_NNODES",    "PET_NODE_RANK",   "PET_RDZV_ID",         "PET_LOCAL_ADDR",
      "PET_STANDALONE"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::vector<std::string> passed_variables(const std::vector<std::pair<std::string, std::string>>& environment,
                                          const std::vector<std::string>& more) {
  // The program's folder is the same on all hosts, so are those where its tools lie.
  std::vector<std::string> wanted{"PATH",
                                  "LD_LIBRARY_PATH",
                                  "PYTHON*",
                                  "VIRTUAL_ENV",
                                  "CONDA_PREFIX",
                                  "OMP_*",
                                  "MKL_*",
                                  "NCCL_*",
                                  "GLOO_*",
                                  "UCX_*",
                                  "TORCH_*",
                                  "PYTORCH_*",
                                  "DDPRUN_*",
                                  "PET_*",
                                  "LOGLEVEL",
                                  "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                                  "CUDA_LAUNCH_BLOCKING"};
  for (const auto& list : more) {
    for (const auto& name : split(list, ',')) wanted.push_back(trimmed(name));
  }
  std::vector<std::string> out;
  for (const auto& [name, value] : environment) {
    if (is_for_starter_only(name)) continue;
    const bool passed = std::any_of(wanted.begin(), wanted.end(), [&name = name](const std::string& pattern) {
      return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
    });
    if (passed) out.push_back(name + "=" + value);
  }
  return out;
}

}  // namespace ddprun::launcher
