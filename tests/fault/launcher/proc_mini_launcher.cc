// The process side of ddprun alone, for fault tests: proc_mini_launcher COUNT SCRIPT
// Starts COUNT workers that run SCRIPT with sh, in the order of main(): guard, folder, group. Ends like ddprun: waits
// for all, stops the rest after the first failure; SIGTERM and SIGINT are passed on with 2 s of patience, a second one
// kills.
#include <signal.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <cstdio>
#include <cstdlib>

#include "common/log.h"
#include "common/task_group.h"
#include "tests/support/patient_group.h"

namespace asio = boost::asio;
using namespace ddprun;
using namespace ddprun::launcher;

extern char** environ;

namespace {

int g_code = 0;

asio::awaitable<void> stop(PatientGroup& group, int signal, std::chrono::milliseconds patience) {
  co_await group.stop(signal, patience);
}

asio::awaitable<void> live(asio::io_context& io, asio::signal_set& signals, PatientGroup& group) {
  TaskGroup tasks(io.get_executor());
  int received = 0;
  std::function<void()> wait = [&] {
    signals.async_wait([&](const boost::system::error_code& ec, int signal) {
      if (ec) return;
      ++received;
      g_code = 128 + signal;
      const std::chrono::milliseconds patience(received == 1 ? 2000 : 0);
      tasks.spawn(stop(group, signal, patience));
      wait();
    });
  };
  wait();
  constexpr std::chrono::milliseconds patience{2000};
  while (true) {
    auto exit = co_await group.next_exit();
    if (!exit) break;
    if (!exit->status.success() && g_code == 0) {
      g_code = exit->status.shell_code();
      co_await group.stop(SIGTERM, patience);
    }
  }
  co_await group.stop(SIGTERM, patience);
  signals.cancel();
  co_await tasks.join();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const InheritedSignals inherited;
  ::signal(SIGPIPE, SIG_IGN);
  log_init("mini", LogLevel::error);
  asio::io_context io(1);
  asio::signal_set signals(io, SIGTERM, SIGINT);  // before there is anything that could be left behind
  WorkerGroupOptions options;
  options.inherited = inherited;
  auto guard = Guard::start();
  if (!guard) return 1;
  options.guard = *guard;
  auto logs = LogTree::open("", "none", *guard);
  if (!logs) return 1;
  options.logs = *logs;
  options.recorder_bytes = 4096;
  auto group = std::make_unique<PatientGroup>(io, options);
  std::vector<WorkerSpec> specs;
  for (int i = 0; i < std::atoi(argv[1]); ++i) {
    WorkerSpec spec;
    spec.process.executable = "/bin/sh";
    spec.process.arguments = {"sh", "-c", argv[2]};
    for (char** entry = environ; *entry != nullptr; ++entry) spec.process.environment.emplace_back(*entry);
    spec.process.environment.push_back("RANK=" + std::to_string(i));
    spec.process.environment.push_back("LOCAL_RANK=" + std::to_string(i));
    spec.env.rank = Rank(i);
    spec.env.local_rank = LocalRank(i);
    specs.push_back(std::move(spec));
  }
  if (auto started = group->start(std::move(specs)); !started) {
    std::fprintf(stderr, "%s\n", started.error().message().c_str());
    return 1;
  }
  asio::co_spawn(io, live(io, signals, *group), [&io](std::exception_ptr failure) {
    if (failure) g_code = 99;
    io.stop();
  });
  io.run();
  return g_code;
}
