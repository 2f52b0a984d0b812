#include "tests/support/proc_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "launcher/process/kill_tree.h"

namespace asio = boost::asio;

namespace ddprun::launcher::testing {

TempFolder::TempFolder() {
  const char* const base = ::getenv("TMPDIR");
  std::string pattern = std::string(base != nullptr ? base : "/tmp") + "/ddprun-test-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) std::abort();
  path_ = pattern;
}

TempFolder::~TempFolder() { remove_tree(path_); }

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) names.push_back(std::filesystem::relative(entry.path(), folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool is_dead(pid_t pid) {
  const auto stat = read_process_stat("/proc", pid);
  return !stat || stat->state == 'Z' || stat->state == 'X';
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count - 1;
}

void run(asio::io_context& io, asio::awaitable<void> task) {
  bool done = false;
  std::exception_ptr failure;
  asio::co_spawn(io, std::move(task), [&](std::exception_ptr e) {
    done = true;
    failure = e;
  });
  io.restart();
  const auto end = std::chrono::steady_clock::now() + kHardLimit;
  while (!done) {
    if (std::chrono::steady_clock::now() > end) {
      std::fprintf(stderr, "the test did not end within %lld s\n", static_cast<long long>(kHardLimit.count()));
      std::abort();
    }
    io.run_one_for(std::chrono::milliseconds(500));
  }
  if (failure) std::rethrow_exception(failure);
}

Harness::Harness() {
  const auto open_console = [this](const char* name) {
    return ::open((folder / name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  };
  options.output.console_stdout = open_console("console.out");
  options.output.console_stderr = open_console("console.err");
}

Harness::~Harness() {
  ::close(options.output.console_stdout);
  ::close(options.output.console_stderr);
}

std::vector<WorkerSpec> Harness::workers(const std::string& script, int count, std::int64_t restart_count) const {
  std::vector<WorkerSpec> specs;
  for (int i = 0; i < count; ++i) {
    WorkerSpec spec;
    spec.process.executable = "/bin/sh";
    spec.process.arguments = {"sh", "-c", script};
    spec.process.environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "RANK=" + std::to_string(i),
                                "LOCAL_RANK=" + std::to_string(i), "T=" + folder.path(),
                                "TORCHELASTIC_RESTART_COUNT=" + std::to_string(restart_count)};
    spec.env.rank = Rank(i);
    spec.env.local_rank = LocalRank(i);
    spec.env.slice.world_size = count;
    spec.env.local_world_size = count;
    spec.env.slice.restart_count = restart_count;
    specs.push_back(std::move(spec));
  }
  return specs;
}

static asio::awaitable<void> finish_all(PatientGroup& group, std::vector<WorkerExit>& exits) {
  while (true) {
    auto exit = co_await group.next_exit();
    if (!exit) break;
    exits.push_back(*exit);
  }
  constexpr std::chrono::milliseconds patience{1000};
  co_await group.stop(SIGTERM, patience);
}

std::vector<WorkerExit> finish(Harness& harness, PatientGroup& group) {
  std::vector<WorkerExit> exits;
  run(harness.io, finish_all(group, exits));
  return exits;
}

}  // namespace ddprun::launcher::testing
