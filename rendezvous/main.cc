#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/exit_code.h"
#include "common/guarded_main.h"
#include "common/inherited_state.h"
#include "common/log.h"
#include "common/options.h"
#include "common/standard_fds.h"
#include "common/tcp.h"
#include "rendezvous/metrics_server.h"
#include "rendezvous/net/listeners.h"
#include "rendezvous/options.h"
#include "rendezvous/sd_notify.h"
#include "rendezvous/server/server.h"
#include "rendezvous/server/state_file.h"
#include "rendezvous/watchdog.h"

// ddprun-rendezvous: the standing daemon. Exit 0 on SIGTERM, SIGINT and SIGHUP, after the agents were told.
namespace ddprun::rendezvous {
namespace {

namespace asio = boost::asio;

int complain(int code, const std::string& text) {
  say("ddprun-rendezvous: " + usage_sentence(text));
  return code;
}

// A bad value is a usage error; a port that is taken is not.
int code_of(const Error& error) {
  return error.code() == Errc::invalid_argument ? exit_code::kUsage : exit_code::kFailure;
}

// Clients of the store must not take all descriptors: an agent that cannot come back loses its workers. So some are
// left, which agents share with what is not known yet.
std::size_t clients_that_fit() {
  constexpr std::size_t kLeft = 1024;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  const auto all = static_cast<std::size_t>(limit.rlim_cur);
  return all - std::min(all / 4, kLeft);
}

// A script's `ddprun-rendezvous &` is not meant by the Ctrl-C for what runs in front: its shell ignores SIGINT for it.
void catch_unless_ignored(asio::signal_set& signals, int number) {
  struct sigaction action {};
  if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) signals.add(number);
}

asio::awaitable<void> serve_until_signalled(RendezvousServer& server, std::unique_ptr<MetricsServer>& metrics,
                                            asio::signal_set& signals) {
  constexpr auto as_tuple = asio::as_tuple(asio::use_awaitable);
  const auto [error, number] = co_await signals.async_wait(as_tuple);
  log_info("stopping signal={} agents={}", number, server.agents());
  sd_notify("STOPPING=1");
  metrics.reset();
  co_await server.say_goodbye();
}

int run(int argc, char** argv) {
  settle_inherited_state();
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const OptionTable& table = rendezvous_option_table();
  auto parsed = table.parse(arguments, process_environment());
  if (!parsed) return complain(exit_code::kUsage, parsed.error().message());
  if (parsed->flag("help") || parsed->flag("version")) {
    print_output(parsed->flag("help") ? table.help() : version_text("ddprun-rendezvous"));
    return exit_code_after_output("ddprun-rendezvous", exit_code::kOk);
  }
  auto options = make_rendezvous_options(*parsed);
  if (!options) return complain(exit_code::kUsage, options.error().message());
  log_init("ddprun-rendezvous", options->log_level);
  raise_descriptor_limit();

  ListenOptions listen;
  listen.address = options->address;
  listen.port = options->port;
  auto listener = tcp_listen(listen);
  if (!listener) return complain(code_of(listener.error()), listener.error().message());
  asio::io_context io(1);
  asio::signal_set signals(io);  // caught before anybody is told that we are there
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) catch_unless_ignored(signals, number);
  ServerOptions server_options;
  server_options.token = options->token;
  server_options.store.max_store_bytes = options->max_store_bytes;
  server_options.store.max_connections = options->max_connections > 0 ? options->max_connections : clients_that_fit();
  if (!options->state_file.empty()) {
    auto state_file = StateFile::open(options->state_file);
    if (!state_file) {
      const bool taken = state_file.error().code() == Errc::refused;  // like a port
      return complain(taken ? exit_code::kFailure : exit_code::kUsage, state_file.error().message());
    }
    auto worlds = read_state(options->state_file);
    if (!worlds) return complain(exit_code::kUsage, worlds.error().message());
    server_options.state_file = std::make_shared<const StateFile>(std::move(*state_file));
    server_options.worlds = std::move(*worlds);
    if (auto writable = server_options.state_file->write(server_options.worlds); !writable) {
      return complain(exit_code::kUsage, writable.error().message());
    }
  }
  RendezvousServer server(io, std::move(*listener), std::move(server_options));
  std::unique_ptr<MetricsServer> metrics;
  if (options->metrics_port) {
    ListenOptions metrics_listen;
    metrics_listen.address = options->metrics_address;
    metrics_listen.port = *options->metrics_port;
    auto metrics_listener = tcp_listen(metrics_listen);
    if (!metrics_listener) {
      return complain(code_of(metrics_listener.error()), "--metrics-port: " + metrics_listener.error().message());
    }
    metrics = std::make_unique<MetricsServer>(io, std::move(*metrics_listener), server);
  }
  log_info("serving port={} metrics_port={}", server.port(), metrics ? std::to_string(metrics->port()) : "none");
  sd_notify("READY=1");
  const Watchdog watchdog(io, watchdog_limit(process_environment(), ::getpid()));
  std::exception_ptr failure;
  asio::co_spawn(io, serve_until_signalled(server, metrics, signals), [&](std::exception_ptr thrown) {
    failure = thrown;
    io.stop();
  });
  io.run();
  if (failure) std::rethrow_exception(failure);
  log_info("stopped");
  return exit_code::kOk;
}

}  // namespace
}  // namespace ddprun::rendezvous

int main(int argc, char** argv) {
  return ddprun::guarded_main("ddprun-rendezvous", [argc, argv] { return ddprun::rendezvous::run(argc, argv); });
}
