#include "rendezvous/options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "common/config.h"

namespace ddprun::rendezvous {
namespace {

OptionSpec integer(std::string name, std::string fallback, double min, double max, std::string help) {
  OptionSpec spec = make_option(std::move(name), OptionKind::integer, std::move(fallback), "N", std::move(help));
  spec.min_value = min;
  spec.max_value = max;
  return spec;
}

OptionTable make_table() {
  std::vector<OptionSpec> options;
  options.push_back(
      make_option("config", OptionKind::text, "", "FILE", "YAML file with these options; flags win over it"));
  options.push_back(integer("port", "29400", 0, 65535, "port of store and rendezvous; 0 = the kernel chooses"));
  options.push_back(make_option("address", OptionKind::text, "", "ADDR", "numeric address to listen on; default: all"));
  options.push_back(integer("metrics-port", "", 0, 65535, "serve /metrics, /healthz and /readyz on this port"));
  options.push_back(make_option("metrics-address", OptionKind::text, "127.0.0.1", "ADDR",
                                "numeric address of the metrics port; 'any' = all"));
  options.push_back(make_option("token-file", OptionKind::text, "", "FILE",
                                "file with a secret that lets ddpctl on other hosts drain and stop; mode 600"));
  options.push_back(
      make_option("state-file", OptionKind::text, "", "FILE",
                  "which jobs run, for the next daemon: it forms no second world of one that it cannot see"));
  options.push_back(integer("max-store-mib", "4096", 1, 1 << 20, "memory for store keys and values"));
  options.push_back(
      integer("max-connections", "0", 0, 1e7, "store clients at once; 0 = as descriptors allow, less some for agents"));
  OptionSpec level = make_option("log-level", OptionKind::choice, "info", "LEVEL", "our own messages");
  level.choices = {"debug", "info", "warning", "error"};
  level.env = "DDPRUN_LOG_LEVEL";
  options.push_back(std::move(level));
  return OptionTable("ddprun-rendezvous", "ddprun-rendezvous [options]", std::move(options), RestPolicy::none);
}

// The secret is the file's text without the newline at its end.
Result<std::string> read_token(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return Error::from_errno(errno, "--token-file " + path);
  // Root's may be read by a group of root's choice: a Kubernetes Secret is such a file, for our fsGroup.
  const bool roots = info.st_uid == 0 && ::geteuid() != 0 && (info.st_mode & 037) == 0;
  if ((info.st_mode & 077) != 0 && !roots) {
    return Error(Errc::invalid_argument, "--token-file " + path + ": others can read it; chmod 600 it");
  }
  std::ifstream file(path);
  std::string token((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (!file && !file.eof()) return Error(Errc::system, "--token-file " + path + ": cannot be read");
  if (token.empty()) return Error(Errc::invalid_argument, "--token-file " + path + ": it is empty");
  return token;
}

LogLevel level_of(const std::string& name) {
  if (name == "debug") return LogLevel::debug;
  if (name == "warning") return LogLevel::warning;
  return name == "error" ? LogLevel::error : LogLevel::info;
}

}  // namespace

const OptionTable& rendezvous_option_table() {
  static const OptionTable table = make_table();
  return table;
}

Result<RendezvousOptions> make_rendezvous_options(const ParsedOptions& parsed) {
  RendezvousOptions out;
  std::int64_t port = 29400;
  std::int64_t metrics_port = -1;
  std::int64_t max_store_mib = 4096;
  std::int64_t max_connections = 0;
  std::string token_file;
  std::string level = "info";
  if (parsed.given("config")) {
    auto config = Config::load(parsed.text("config"));
    if (!config) return std::move(config).error();
    ConfigSection root = config->root();
    port = root.integer("port", port, 0, 65535);
    out.address = root.text("address", out.address);
    metrics_port = root.integer("metrics_port", metrics_port, 0, 65535);
    out.metrics_address = root.text("metrics_address", out.metrics_address);
    token_file = root.path("token_file", token_file);
    out.state_file = root.path("state_file", out.state_file);
    max_store_mib = root.integer("max_store_mib", max_store_mib, 1, 1 << 20);
    max_connections = root.integer("max_connections", max_connections, 0, 10'000'000);
    level = root.choice("log_level", level, {"debug", "info", "warning", "error"});
    if (auto finished = config->finish(); !finished) return std::move(finished).error();
  }
  if (parsed.given("port")) port = parsed.integer("port");
  if (parsed.given("address")) out.address = parsed.text("address");
  if (parsed.given("metrics-port")) metrics_port = parsed.integer("metrics-port");
  if (parsed.given("metrics-address")) out.metrics_address = parsed.text("metrics-address");
  if (parsed.given("token-file")) token_file = parsed.text("token-file");
  if (parsed.given("state-file")) out.state_file = parsed.text("state-file");
  if (parsed.given("max-store-mib")) max_store_mib = parsed.integer("max-store-mib");
  if (parsed.given("max-connections")) max_connections = parsed.integer("max-connections");
  if (parsed.given("log-level")) level = parsed.text("log-level");
  out.port = static_cast<std::uint16_t>(port);
  if (metrics_port >= 0) out.metrics_port = static_cast<std::uint16_t>(metrics_port);
  if (out.metrics_address == "any") out.metrics_address.clear();
  out.max_store_bytes = static_cast<std::size_t>(max_store_mib) << 20;
  out.max_connections = static_cast<std::size_t>(max_connections);
  out.log_level = level_of(level);
  const bool same_address = out.address.empty() || out.metrics_address.empty() || out.address == out.metrics_address;
  if (out.metrics_port && out.port != 0 && *out.metrics_port == out.port && same_address) {
    return Error(Errc::invalid_argument,
                 "--port and --metrics-port are both " + std::to_string(out.port) + ": give each its own");
  }
  if (!token_file.empty()) {
    auto token = read_token(token_file);
    if (!token) return std::move(token).error();
    out.token = std::move(*token);
  }
  return out;
}

}  // namespace ddprun::rendezvous
