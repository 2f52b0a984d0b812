#include "launcher/options/options.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "common/rdzv_protocol.h"
#include "common/signal_names.h"
#include "common/worker_env.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr std::uint16_t kC10dPort = 29400;
constexpr std::uint16_t kStaticPort = 29500;
// torchrun takes any number; beyond this it is a typing error on every host there is.
constexpr std::int64_t kMaxWorkersPerNode = 100'000;

Error bad(const std::string& source, std::string_view message) {
  return Error(Errc::invalid_argument, fmt::format("{}: {}", source, message));
}

std::string random_run_id() {
  std::array<unsigned char, 16> bytes{};
  // Without getrandom (never on a kernel that we run on) the zeros only make the name dull; nothing depends on secrecy.
  [[maybe_unused]] const auto got = ::getrandom(bytes.data(), bytes.size(), 0);
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);  // version 4, as Python's uuid.uuid4()
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", bytes[i]);
  }
  return out;
}

bool loopback_name(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

Result<void> read_nnodes(const ParsedOptions& parsed, LaunchOptions& out) {
  const auto& text = parsed.text("nnodes");
  const auto source = parsed.source("nnodes");
  const auto fields = split(text, ':');
  if (fields.empty() || fields.size() > 2) return bad(source, fmt::format("'{}' is neither N nor MIN:MAX", text));
  auto min = parse_integer(fields.front(), 1, rdzv::kMaxCount);
  if (!min) return bad(source, min.error().message());
  auto max = parse_integer(fields.back(), 1, rdzv::kMaxCount);
  if (!max) return bad(source, max.error().message());
  if (*min > *max) return bad(source, fmt::format("the minimum {} is above the maximum {}", *min, *max));
  out.job.nnodes_min = *min;
  out.job.nnodes_max = *max;
  return {};
}

Result<void> read_nproc(const ParsedOptions& parsed, const EnvLookup& env, const HostFacts& host, LaunchOptions& out) {
  const auto& text = parsed.text("nproc-per-node");
  const auto source = parsed.source("nproc-per-node");
  if (auto number = parse_integer(text, 1, kMaxWorkersPerNode)) {
    out.nproc = *number;
    return {};
  } else if (text.find_first_not_of("+-0123456789") == std::string::npos && !text.empty()) {
    return bad(source, number.error().message());
  }
  if (text == "cpu") {
    out.nproc = host.cpu_count();
    return {};
  }
  if (text != "gpu" && text != "auto" && text != "cuda") {
    return bad(source, fmt::format("'{}' is none of N, gpu, cpu and auto{}", text,
                                   text == "xpu" ? " (only NVIDIA GPUs are counted)" : ""));
  }
  auto gpus = out.devices.empty() ? host.gpu_count() : Result<std::int64_t>(std::int64_t(out.devices.size()));
  if (gpus && *gpus > 0) {
    const auto listed = out.devices.empty() ? split(env("CUDA_VISIBLE_DEVICES").value_or(""), ',') : out.devices;
    if (const auto instances = mig_instances(listed); instances > 1 && !parsed.flag("virtual-local-rank")) {
      return bad(source, fmt::format("{} MIG instances are listed in {}, but CUDA shows a process only one of them. "
                                     "Add --virtual-local-rank: each worker gets one of its own.",
                                     instances, out.devices.empty() ? "CUDA_VISIBLE_DEVICES" : "--devices"));
    }
    out.nproc = *gpus;
    return {};
  }
  if (text == "auto") {
    out.nproc = host.cpu_count();
    return {};
  }
  return bad(source, fmt::format("no GPU can be used: {}. Use --nproc-per-node=cpu or a number.",
                                 gpus ? "there is none on this host" : gpus.error().message()));
}

// The table of torchrun-semantics 1.4.
Result<void> read_rendezvous(const ParsedOptions& parsed, LaunchOptions& out) {
  std::string backend = parsed.text("rdzv-backend");
  const auto backend_source = parsed.source("rdzv-backend");
  const std::string endpoint = trimmed(parsed.text("rdzv-endpoint"));
  out.run_id = RunId(parsed.text("rdzv-id"));
  const bool port_given = parsed.given("master-port");
  bool single = false;

  if (parsed.flag("standalone")) {
    if (out.job.nnodes_min > 1) {
      return bad(parsed.source("nnodes"),
                 fmt::format("--standalone is a job of one node, but at least {} are asked for. Leave --standalone out "
                             "and give --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT.",
                             out.job.nnodes_min));
    }
    out.job.nnodes_max = 1;
    single = true;
    if (!endpoint.empty()) {
      out.warnings.push_back(
          fmt::format("{} is not used: --standalone serves its own rendezvous", parsed.source("rdzv-endpoint")));
    }
  } else if (backend == "static" && endpoint.empty() && !port_given && out.job.nnodes_max == 1) {
    single = true;
  }
  if (backend != "static" && backend != "c10d" && !single) {
    if (backend == "etcd" || backend == "etcd-v2") {
      return bad(
          backend_source,
          fmt::format("'{}' needs etcd's v2 API, which etcd 3.4 and later switch off, so it is not supported. Use "
                      "--rdzv-backend=c10d with --rdzv-endpoint=HOST:PORT of one node or of ddprun-rendezvous.",
                      backend));
    }
    return bad(backend_source, fmt::format("there is no rendezvous backend '{}'; known are c10d and static", backend));
  }
  if (single) {
    out.job.backend = RdzvBackend::c10d;
    out.endpoint = Endpoint{"127.0.0.1", 0};
    out.local_job = true;
    if (!parsed.given("rdzv-id") || parsed.text("rdzv-id") == "none") out.run_id = RunId(random_run_id());
    for (const char* name : {"master-addr", "master-port"}) {
      if (parsed.given(name)) {
        out.warnings.push_back(fmt::format("{} is not used: a job of one node serves its store on 127.0.0.1{}",
                                           parsed.source(name),
                                           port_given ? "" : "; give --master-port as well to choose both"));
      }
    }
    if (!out.local_addr.empty()) {
      out.warnings.push_back(fmt::format("{} is not used: a job of one node without an endpoint is on 127.0.0.1 only",
                                         parsed.source("local-addr")));
      out.local_addr.clear();
    }
    if (parsed.integer("node-rank") != 0) {
      out.warnings.push_back(fmt::format("{}={} is not used: there is one node only", parsed.source("node-rank"),
                                         parsed.integer("node-rank")));
    }
  } else if (backend == "static") {
    out.job.backend = RdzvBackend::static_ranks;
    out.job.nnodes_min = out.job.nnodes_max;  // static needs all of them
    if (!endpoint.empty()) {
      auto parsed_endpoint = Endpoint::parse(endpoint, 0);
      if (!parsed_endpoint) return bad(parsed.source("rdzv-endpoint"), parsed_endpoint.error().message());
      if (parsed_endpoint->port == 0) {
        return bad(parsed.source("rdzv-endpoint"),
                   fmt::format("'{}' has no port; the static backend needs HOST:PORT", endpoint));
      }
      out.endpoint = *parsed_endpoint;
    } else {
      // A host alone: no colon of an IPv6 address is before a port.
      const auto& text = parsed.text("master-addr");
      const bool bare = std::count(text.begin(), text.end(), ':') >= 2 && !text.starts_with('[');
      auto host = Endpoint::parse(bare ? "[" + text + "]" : text, 0);
      if (!host) return bad(parsed.source("master-addr"), host.error().message());
      out.endpoint =
          Endpoint{host->host, port_given ? static_cast<std::uint16_t>(parsed.integer("master-port")) : kStaticPort};
    }
    out.node_rank = parsed.integer("node-rank");
    if (*out.node_rank >= out.job.nnodes_max) {
      return bad(parsed.source("node-rank"),
                 fmt::format("{} does not fit {} node{}: ranks are 0..{}", *out.node_rank, out.job.nnodes_max,
                             out.job.nnodes_max == 1 ? "" : "s", out.job.nnodes_max - 1));
    }
    out.local_job = out.job.nnodes_max == 1 && loopback_name(out.endpoint.host);
    out.job.join_timeout = std::chrono::seconds(900);  // torchrun's default of the static backend
  } else {
    out.job.backend = RdzvBackend::c10d;
    auto parsed_endpoint = Endpoint::parse(endpoint.empty() ? "localhost" : endpoint, kC10dPort);
    if (!parsed_endpoint) return bad(parsed.source("rdzv-endpoint"), parsed_endpoint.error().message());
    out.endpoint = *parsed_endpoint;
    if (out.endpoint.port == 0 && out.job.nnodes_min > 1) {
      return bad(parsed.source("rdzv-endpoint"),
                 fmt::format("port 0 is a free port of our choice, which the other {} nodes cannot know; name one",
                             out.job.nnodes_min - 1));
    }
    if (parsed.given("node-rank")) out.node_rank = parsed.integer("node-rank");
    out.local_job = out.job.nnodes_max == 1 && loopback_name(out.endpoint.host);
    if (port_given) out.master_port = static_cast<std::uint16_t>(parsed.integer("master-port"));
    if (parsed.given("master-addr")) {
      out.warnings.push_back(
          fmt::format("{} is not used by the c10d backend: the node of group rank 0 names itself "
                      "(--local-addr)",
                      parsed.source("master-addr")));
    }
  }
  if (out.run_id.value.empty()) out.run_id = RunId(random_run_id());
  return {};
}

Result<void> read_conf(const ParsedOptions& parsed, LaunchOptions& out) {
  const auto source = parsed.source("rdzv-conf");
  static const std::vector<std::string> kKnown{"join_timeout",
                                               "last_call_timeout",
                                               "close_timeout",
                                               "keep_alive_interval",
                                               "read_timeout",
                                               "keep_alive_max_attempt",
                                               "is_host",
                                               "timeout",
                                               "on_silence",
                                               "rank",
                                               "store_type",
                                               "heartbeat_timeout",
                                               "cas_backoff_max_seconds"};
  for (const auto& item : split(parsed.text("rdzv-conf"), ',')) {
    const auto equals = item.find('=');
    const std::string key = trimmed(item.substr(0, equals));
    const std::string value = equals == std::string::npos ? "" : trimmed(item.substr(equals + 1));
    if (key.empty() || value.empty()) return bad(source, fmt::format("'{}' is not KEY=VALUE", item));
    const auto seconds = [&](std::chrono::milliseconds& target) -> Result<void> {
      auto number = parse_integer(value, 1, 365 * 24 * 3600);
      if (!number) return bad(source, fmt::format("{}: {} (whole seconds, at least 1)", key, number.error().message()));
      target = std::chrono::seconds(*number);
      return {};
    };
    Result<void> done;
    if (key == "join_timeout") {
      done = seconds(out.job.join_timeout);
    } else if (key == "timeout" && out.job.backend == RdzvBackend::static_ranks) {
      done = seconds(out.job.join_timeout);
    } else if (key == "last_call_timeout") {
      done = seconds(out.job.last_call_timeout);
    } else if (key == "close_timeout") {
      done = seconds(out.job.close_timeout);
    } else if (key == "keep_alive_interval") {
      done = seconds(out.job.keep_alive_interval);
    } else if (key == "read_timeout") {
      done = seconds(out.conf.read_timeout);
    } else if (key == "keep_alive_max_attempt") {
      auto number = parse_integer(value, 1, rdzv::kMaxKeepAliveAttempts);
      if (!number) return bad(source, fmt::format("{}: {}", key, number.error().message()));
      out.job.keep_alive_max_attempt = *number;
    } else if (key == "is_host") {
      std::string word = value;
      std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
      if (word == "1" || word == "true" || word == "t" || word == "yes" || word == "y") {
        out.conf.is_host = true;
      } else if (word == "0" || word == "false" || word == "f" || word == "no" || word == "n") {
        out.conf.is_host = false;
      } else {
        return bad(source, fmt::format("is_host: '{}' is neither true nor false", value));
      }
    } else if (key == "on_silence") {
      if (value != "stop" && value != "keep") {
        return bad(source, fmt::format("on_silence: '{}' is neither stop nor keep", value));
      }
      out.conf.keep_on_silence = value == "keep";
    } else if (key == "store_type") {
      if (value != "tcp" && value != "TCP") {
        return bad(source, fmt::format("store_type: '{}' is not supported; the rendezvous speaks tcp only", value));
      }
    } else if (std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end()) {
      out.warnings.push_back(fmt::format("{}: {} means nothing here and is not used", source, key));
    } else {
      const auto near = nearest_name(key, kKnown);
      out.warnings.push_back(fmt::format("{}: unknown key '{}' is not used{}", source, key,
                                         near ? fmt::format(" (did you mean {}?)", *near) : ""));
    }
    if (!done) return done;
  }
  if (out.job.lease() > kMaxLease) return bad(source, lease_too_long(out.job));
  return {};
}

// Nobody asked for a loopback endpoint, and for the other nodes it is another host: they would wait for nothing.
Result<void> check_default_endpoint(const ParsedOptions& parsed, const LaunchOptions& out) {
  if (out.job.nnodes_min < 2 || parsed.given("rdzv-endpoint")) return {};
  const bool is_static = out.job.backend == RdzvBackend::static_ranks;
  if (is_static ? parsed.given("master-addr") || out.node_rank == 0 : out.conf.is_host.value_or(false)) return {};
  return Error(Errc::invalid_argument,
               fmt::format("{} nodes, and this one is to meet the others at the default, {}, which is this host: give "
                           "{} of the node that serves",
                           out.job.nnodes_min, out.endpoint.to_string(),
                           is_static ? "--master-addr=HOST" : "--rdzv-endpoint=HOST[:PORT]"));
}

Result<void> read_output(const ParsedOptions& parsed, const EnvLookup& env, LaunchOptions& out) {
  auto& output = out.output;
  out.logs.log_dir = parsed.text("log-dir");
  auto redirects = parse_stream_choice(parsed.text("redirects"));
  if (!redirects) return bad(parsed.source("redirects"), redirects.error().message());
  output.redirects = std::move(*redirects);
  auto tee = parse_stream_choice(parsed.text("tee"));
  if (!tee) return bad(parsed.source("tee"), tee.error().message());
  output.tee = std::move(*tee);
  output.prefix_template = parsed.text("log-line-prefix-template");
  if (output.prefix_template.empty())
    output.prefix_template = env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  for (const auto& item : split(parsed.text("local-ranks-filter"), ',')) {
    auto rank = parse_integer(trimmed(item), 0, std::numeric_limits<std::int64_t>::max());
    if (!rank) return bad(parsed.source("local-ranks-filter"), fmt::format("'{}' is not a local rank", item));
    if (!output.console_ranks) output.console_ranks.emplace();
    output.console_ranks->insert(*rank);
  }
  for (const char* name : {"duplicate-stdout-filters", "duplicate-stderr-filters"}) {
    auto filters = split_escaped_commas(parsed.text(name));
    if (filters.empty()) continue;
    const bool is_stdout = std::string_view(name) == "duplicate-stdout-filters";
    bool seen = false;
    for (std::int64_t rank = 0; rank < out.nproc && !seen; ++rank) {
      seen = is_stdout ? output.tee.has_stdout(LocalRank(rank)) : output.tee.has_stderr(LocalRank(rank));
    }
    if (!seen) {
      out.warnings.push_back(fmt::format("{} sees tee'd lines only, and no worker's {} is tee'd (--tee)",
                                         parsed.source(name), is_stdout ? "stdout" : "stderr"));
    }
    (is_stdout ? output.duplicate_stdout_filters : output.duplicate_stderr_filters) = std::move(filters);
  }
  auto size = parse_size(parsed.text("log-max-size"));
  if (!size) return bad(parsed.source("log-max-size"), size.error().message());
  output.log_max_size_bytes = *size;
  out.logs.report_file = parsed.text("report");
  out.logs.own_error_file = env("TORCHELASTIC_ERROR_FILE").value_or("");
  return {};
}

Result<void> read_signals(const ParsedOptions& parsed, LaunchOptions& out) {
  const auto read = [&](const char* name, std::vector<int>& target) -> Result<void> {
    for (const auto& item : split(parsed.text(name), ',')) {
      const std::string word = trimmed(item);
      if (word.empty()) continue;
      const auto number = signal_number(word);
      if (!number) {
        out.warnings.push_back(fmt::format("{}: there is no signal '{}'; it is left out", parsed.source(name), word));
        continue;
      }
      if (*number == SIGKILL || *number == SIGSTOP) {
        return bad(parsed.source(name), fmt::format("{} cannot be caught by any program", word));
      }
      if (*number == SIGCHLD || *number == SIGPIPE || *number == SIGSEGV || *number == SIGBUS || *number == SIGFPE ||
          *number == SIGILL || *number == SIGABRT) {
        return bad(parsed.source(name), fmt::format("{} is not for others to send; it cannot be passed on", word));
      }
      if (std::find(target.begin(), target.end(), *number) == target.end()) target.push_back(*number);
    }
    return {};
  };
  if (auto done = read("signals-to-handle", out.signals_to_handle); !done) return done;
  std::vector<int> forward;
  if (auto done = read("signals-to-forward", forward); !done) return done;
  for (const int number : forward) {
    const auto& handled = out.signals_to_handle;
    if (std::find(handled.begin(), handled.end(), number) == handled.end()) {
      out.signals_to_forward.push_back(number);
    } else if (parsed.given("signals-to-forward")) {
      return bad(parsed.source("signals-to-forward"),
                 fmt::format("{} stands in --signals-to-handle too: either it ends the job or the job goes on",
                             signal_name(number)));
    }
  }
  return {};
}

bool valid_name(std::string_view name) {
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") ==
             std::string_view::npos;
}

Result<void> read_workers(const ParsedOptions& parsed, LaunchOptions& out) {
  auto& environment = out.environment;
  if (parsed.given("nccl-debug-subsystems")) {
    environment.emplace_back("NCCL_DEBUG", "INFO");
    environment.emplace_back("NCCL_DEBUG_SUBSYS", parsed.text("nccl-debug-subsystems"));
  } else if (parsed.flag("nccl-debug")) {
    environment.emplace_back("NCCL_DEBUG", "INFO");
  }
  if (parsed.given("nccl-algo")) environment.emplace_back("NCCL_ALGO", parsed.text("nccl-algo"));
  if (parsed.flag("nccl-shm-disable")) environment.emplace_back("NCCL_SHM_DISABLE", "1");
  if (parsed.flag("cuda-launch-blocking")) environment.emplace_back("CUDA_LAUNCH_BLOCKING", "1");
  if (parsed.given("network-interface")) {
    environment.emplace_back("NCCL_SOCKET_IFNAME", parsed.text("network-interface"));
    environment.emplace_back("GLOO_SOCKET_IFNAME", parsed.text("network-interface"));
  }
  WorkerEnv everything;
  everything.recorder_fd = 0;
  const auto owned = to_environment(everything);
  for (const auto& assignment : parsed.texts("env")) {
    const auto equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    if (equals == std::string::npos || !valid_name(name)) {
      return bad(parsed.source("env"), fmt::format("'{}' is not NAME=VALUE", assignment));
    }
    if (std::any_of(owned.begin(), owned.end(), [&name](const auto& entry) { return entry.first == name; })) {
      return bad(parsed.source("env"),
                 fmt::format("{} is set by ddprun for each worker and cannot be overridden", name));
    }
    environment.emplace_back(name, assignment.substr(equals + 1));
  }
  for (const auto& text : parsed.texts("worker-limit")) {
    auto limits = parse_limits(text);
    if (!limits) return bad(parsed.source("worker-limit"), limits.error().message());
    out.limits.insert(out.limits.end(), limits->begin(), limits->end());
  }
  out.signal_group = parsed.text("signal-scope") == "group";
  const auto& leftovers = parsed.text("leftovers");
  out.leftovers = leftovers == "wait" ? Leftovers::wait : leftovers == "keep" ? Leftovers::keep : Leftovers::end;
  auto stdin_policy = parse_stdin_policy(parsed.text("stdin"));
  if (!stdin_policy) return bad(parsed.source("stdin"), stdin_policy.error().message());
  out.stdin_policy = *stdin_policy;
  if (out.stdin_policy.kind == StdinPolicy::Kind::one && out.stdin_policy.rank.value >= out.nproc) {
    return bad(parsed.source("stdin"),
               fmt::format("there is no local rank {}: this node has {} {}", out.stdin_policy.rank.value, out.nproc,
                           out.nproc == 1 ? "worker" : "workers"));
  }
  out.numa_binding = parsed.text("numa-binding");
  out.virtual_local_rank = parsed.flag("virtual-local-rank");
  if (out.virtual_local_rank && !out.devices.empty() && std::int64_t(out.devices.size()) < out.nproc) {
    return bad(parsed.source("devices"),
               fmt::format("{} devices cannot be shared out to {} workers one by one", out.devices.size(), out.nproc));
  }
  return {};
}

Result<void> read_program(const ParsedOptions& parsed, Flavour flavour, LaunchOptions& out) {
  if (parsed.rest().empty()) {
    return Error(Errc::invalid_argument, "no program is given: ddprun [options] program [arguments] (see --help)");
  }
  out.program = parsed.rest().front();
  if (out.program.empty()) return Error(Errc::invalid_argument, "the program's name is empty");
  out.arguments.assign(parsed.rest().begin() + 1, parsed.rest().end());
  out.module = parsed.flag("module");
  if (out.module && out.program.ends_with('\r')) {
    return bad(parsed.source("module"), fmt::format("'{}' ends in a carriage return", out.program));
  }
  if (!out.arguments.empty() && out.arguments.back().ends_with('\r')) {  // it is the program's own, and may be meant
    out.warnings.push_back(usage_sentence(
        fmt::format("the program's last argument, '{}', ends in a carriage return", out.arguments.back())));
  }
  out.no_python = parsed.flag("no-python");
  out.run_path = parsed.flag("run-path");
  if (out.run_path) {  // as torchrun: --run-path beats both
    out.no_python = false;
    out.module = false;
  }
  if (out.no_python && out.module) {
    return bad(parsed.source("no-python"),
               "--module runs a python module, --no-python runs no python: give one of them");
  }
  if (flavour == Flavour::launch) {
    if (out.no_python && !parsed.flag("use-env")) {
      return bad(parsed.source("no-python"), "with --no-python give --use-env as well: --local-rank is for scripts");
    }
    const auto& style = parsed.text("local-rank-style");
    out.local_rank_argument = parsed.flag("use-env")  ? LocalRankArgument::none
                              : style == "hyphen"     ? LocalRankArgument::hyphen
                              : style == "underscore" ? LocalRankArgument::underscore
                                                      : LocalRankArgument::by_script;
  }
  if (parsed.text("start-method") != "spawn") {
    return bad(parsed.source("start-method"),
               fmt::format("'{}' is not supported: every worker is a fresh process, as with spawn",
                           parsed.text("start-method")));
  }
  return {};
}

Result<void> read_supervision(const ParsedOptions& parsed, const EnvLookup& env, LaunchOptions& out) {
  out.job.max_restarts = parsed.integer("max-restarts");
  out.job.crash_loop_limit = parsed.integer("crash-loop-limit");
  out.torchrun_exit_codes = parsed.text("exit-code") == "torchrun";
  auto backoff = parse_seconds(parsed.text("restart-backoff"));
  if (!backoff) return bad(parsed.source("restart-backoff"), backoff.error().message());
  out.restart_backoff = *backoff;
  auto interval = parse_seconds(parsed.text("monitor-interval"));
  if (!interval || interval->count() == 0) {
    return bad(parsed.source("monitor-interval"),
               fmt::format("'{}' is not a number of seconds above 0", parsed.text("monitor-interval")));
  }
  if (parsed.given("monitor-interval")) {
    out.notes.push_back(
        fmt::format("{} is not needed: the end of a worker is seen at once", parsed.source("monitor-interval")));
  }
  std::string timeout_source = parsed.source("shutdown-timeout");
  std::string timeout = parsed.given("shutdown-timeout") ? parsed.text("shutdown-timeout") : "";
  if (timeout.empty()) {
    timeout = env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT").value_or("");
    timeout_source = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  }
  if (!timeout.empty()) {
    auto seconds = parse_seconds(timeout);
    if (!seconds) return bad(timeout_source, seconds.error().message());
    out.shutdown_timeout = *seconds;
  }
  // torch reads it so: exactly "1" switches sharing off.
  out.workers_bind_master_port = env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE").value_or("") == "1";
  if (out.workers_bind_master_port && out.job.backend == RdzvBackend::static_ranks) {
    out.workers_bind_master_port = false;
    out.warnings.push_back(
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is not used with the static backend: its one port is "
        "the rendezvous's too");
  }
  const auto& events = parsed.text("event-log-handler");
  out.events = events == "console"              ? LaunchOptions::Events::console
               : events == "dynamic_rendezvous" ? LaunchOptions::Events::dynamic_rendezvous
                                                : LaunchOptions::Events::none;
  if (parsed.given("logs-specs")) {
    return bad(parsed.source("logs-specs"),
               fmt::format("'{}' names a Python plug-in, and this launcher loads no Python. --log-dir, --redirects, "
                           "--tee, --log-max-size and --report shape the logs.",
                           parsed.text("logs-specs")));
  }
  return {};
}

// What torchrun does for a variable and we do not is said, once.
void read_torch_variables(const HostFacts& host, LaunchOptions& out) {
  std::vector<std::string> known = worker_env_names();  // of an outer launcher, or left over from one; we set our own
  known.insert(known.end(), {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "TORCHELASTIC_SIGNALS_TO_HANDLE"});
  for (const auto& name : host.variables) {
    if (!name.starts_with("TORCHELASTIC_") && name != "TORCH_ELASTIC_WORKER_IDENTICAL") continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto near = nearest_name(name, known);
    out.warnings.push_back(usage_sentence(fmt::format(
        "the variable {} has no effect on this launcher{}", name,
        name == "TORCHELASTIC_ENABLE_FILE_TIMER" || name == "TORCHELASTIC_TIMER_FILE"
            ? ": it has no file timer, so a worker's torch.distributed.elastic.timer ends nobody"
        : name == "TORCHELASTIC_HEALTH_CHECK_PORT" ? ": it has no health check; ddpctl status says how the job is"
        : name == "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
            ? ": it does not look for workers that hang in the kernel while they run"
        : name == "TORCH_ELASTIC_WORKER_IDENTICAL" ? ": ranks are always numbered by the rendezvous"
        : near                                     ? fmt::format(" (did you mean {}?)", *near)
                                                   : std::string())));
  }
}

// --log-level, else LOGLEVEL (torchrun's variable, Python's names), else info.
Result<void> read_log_level(const ParsedOptions& parsed, const EnvLookup& env, LaunchOptions& out) {
  const bool own = parsed.given("log-level");
  std::string word = own ? parsed.text("log-level") : env("LOGLEVEL").value_or("");
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (word == "critical" || word == "fatal") word = "error";
  if (word == "warn") word = "warning";
  if (word == "debug" || word == "info" || word == "warning" || word == "error") {
    out.log_level = word;
    out.log_level_given = true;
  } else if (own) {
    return bad(parsed.source("log-level"), fmt::format("'{}' is none of debug, info, warning, error", word));
  }
  return {};
}

}  // namespace

Result<LaunchOptions> make_launch_options(const ParsedOptions& parsed, Flavour flavour, const EnvLookup& env,
                                          const HostFacts& host) {
  LaunchOptions out;
  out.flavour = flavour;
  out.role = parsed.text("role");
  out.local_addr = parsed.text("local-addr");
  out.topology_key = parsed.text("topology-key");
  out.network_interface = parsed.text("network-interface");
  out.preflight = parsed.text("preflight") == "on";
  for (const auto& device : split(parsed.text("devices"), ',')) {
    if (trimmed(device).empty()) return bad(parsed.source("devices"), "there is an empty entry in the list");
    out.devices.push_back(trimmed(device));
  }
  if (parsed.given("port-range")) {
    auto range = parse_port_range(parsed.text("port-range"));
    if (!range) return bad(parsed.source("port-range"), range.error().message());
    out.first_port = range->first;
    out.last_port = range->second;
  }
  if (auto done = read_log_level(parsed, env, out); !done) return std::move(done).error();
  if (auto done = read_program(parsed, flavour, out); !done) return std::move(done).error();
  if (auto done = read_nnodes(parsed, out); !done) return std::move(done).error();
  if (auto done = read_nproc(parsed, env, host, out); !done) return std::move(done).error();
  if (auto done = read_rendezvous(parsed, out); !done) return std::move(done).error();
  if (auto done = read_conf(parsed, out); !done) return std::move(done).error();
  if (auto done = check_default_endpoint(parsed, out); !done) return std::move(done).error();
  if (auto done = read_output(parsed, env, out); !done) return std::move(done).error();
  if (auto done = read_signals(parsed, out); !done) return std::move(done).error();
  if (auto done = read_workers(parsed, out); !done) return std::move(done).error();
  if (auto done = read_supervision(parsed, env, out); !done) return std::move(done).error();
  read_torch_variables(host, out);
  return out;
}

}  // namespace ddprun::launcher
