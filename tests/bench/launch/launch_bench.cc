// ddprun beside torchrun, same commands, same minute: start of no-op workers, a worker's death to all restarted, memory
// at the peak and idle, throughput of --tee.
//   launch_bench [--torchrun FILE] [--repeat N] [--only NAME]
// torchrun is taken from the tests' environment if it is there; without it only ddprun's numbers are printed.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "launcher/output/log_tree.h"
#include "launcher/process/kill_tree.h"
#include "launcher/process/process.h"

extern char** environ;

namespace {

using namespace ddprun;
using namespace ddprun::launcher;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::int64_t monotonic_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct TempFolder {
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "launch-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path = pattern;
  }
  ~TempFolder() { remove_tree(path); }
  std::string path;
};

// --- the worker's side: the same binary under another name of work ---

void note_time(const std::string& path) {
  const std::string text = std::to_string(monotonic_ns());
  const std::string beside = path + ".tmp";
  std::ofstream(beside) << text;
  ::rename(beside.c_str(), path.c_str());
}

bool there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

void wait_for(const std::string& path) {
  while (!there(path)) ::usleep(500);
}

int restart_worker(const std::string& folder) {
  const std::string rank = ::getenv("RANK");
  if (std::strcmp(::getenv("TORCHELASTIC_RESTART_COUNT"), "0") == 0) {
    note_time(folder + "/up." + rank);
    wait_for(folder + "/up.0");
    wait_for(folder + "/up.1");
    if (rank != "1") return ::pause();
    ::usleep(300'000);  // the launcher has come to rest
    note_time(folder + "/died");
    ::_exit(1);
  }
  note_time(folder + "/again." + rank);
  return 0;
}

int loud_worker(std::int64_t bytes) {
  std::string block;
  const std::string rank = ::getenv("RANK");
  while (block.size() < 64'000) block += "rank " + rank + " " + std::string(92 - rank.size(), 'x') + "\n";
  for (std::int64_t done = 0; done < bytes; done += static_cast<std::int64_t>(block.size())) {
    for (std::size_t at = 0; at < block.size();) {
      const ssize_t n = ::write(1, block.data() + at, block.size() - at);
      if (n < 0) return 1;
      at += static_cast<std::size_t>(n);
    }
  }
  return 0;
}

// --- the measuring side ---

// Name and size of the address space: equal for a parent and a child that shares its memory.
std::string identity(pid_t pid) {
  const std::string base = "/proc/" + std::to_string(pid);
  std::string name, size;
  std::getline(std::ifstream(base + "/comm") >> std::ws, name);
  std::ifstream(base + "/statm") >> size;
  return name + " " + size;
}

// Resident memory of `root` and all below it but those that run `except` (the workers), in KiB.
long tree_memory_kib(pid_t root, const std::string& except) {
  std::map<pid_t, std::vector<pid_t>> children;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    if (const auto stat = read_process_stat("/proc", pid)) children[stat->parent].push_back(pid);
  }
  long total_kib = 0;
  std::vector<pid_t> todo{root};
  while (!todo.empty()) {
    const pid_t pid = todo.back();
    todo.pop_back();
    const std::string base = "/proc/" + std::to_string(pid);
    for (const pid_t child : children[pid]) {
      // Between vfork and exec a child shows its parent's memory as its own.
      if (identity(child) != identity(pid)) todo.push_back(child);
    }
    char executable[4096] = {};
    if (::readlink((base + "/exe").c_str(), executable, sizeof executable - 1) < 0) continue;
    if (!except.empty() && except == executable) continue;
    long size = 0, resident = 0;
    std::ifstream(base + "/statm") >> size >> resident;
    total_kib += resident * (::sysconf(_SC_PAGESIZE) / 1024);
  }
  return total_kib;
}

struct Run {
  double wall_ms = 0;
  long peak_kib = 0;
  int status = 0;
};

struct Child {
  pid_t pid = -1;
  Clock::time_point begin;
};

Child launch(const std::vector<std::string>& command, const char* out = "/dev/null") {
  SpawnSpec spec;
  spec.executable = command.at(0);
  spec.arguments = command;
  for (char** entry = environ; *entry != nullptr; ++entry) spec.environment.emplace_back(*entry);
  const UniqueFd null_fd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const UniqueFd out_fd(::open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  spec.stdout_fd = out_fd.get();
  spec.stderr_fd = null_fd.get();
  const InheritedSignals inherited;
  Child child;
  child.begin = Clock::now();
  const auto pid = spawn(spec, inherited);
  if (!pid) {
    std::cerr << "launch_bench: " << pid.error().message() << "\n";
    std::exit(1);
  }
  child.pid = *pid;
  return child;
}

// Runs to the end; `sample` also measures the peak (and so costs a little time itself).
Run measure(const std::vector<std::string>& command, bool sample, const std::string& worker) {
  Run run;
  const Child child = launch(command);
  rusage usage = {};
  while (::wait4(child.pid, &run.status, sample ? WNOHANG : 0, &usage) == 0) {
    run.peak_kib = std::max(run.peak_kib, tree_memory_kib(child.pid, worker));
  }
  run.wall_ms = milliseconds_since(child.begin);
  run.peak_kib = std::max(run.peak_kib, usage.ru_maxrss);
  return run;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(std::string self, std::string ddprun, std::string torchrun, int repeat)
      : self_(std::move(self)), ddprun_(std::move(ddprun)), torchrun_(std::move(torchrun)), repeat_(repeat) {}

  void start(int workers) {
    const auto ours = start_of(ddprun_, workers, repeat_ * 3);
    std::optional<Run> theirs;
    if (!torchrun_.empty()) theirs = start_of(torchrun_, workers, std::max(1, repeat_ / 2));
    const std::string name = "start of " + std::to_string(workers) + " no-op workers";
    row(name + ", wall", "ms", ours.wall_ms, theirs ? std::optional(theirs->wall_ms) : std::nullopt);
    row(name + ", peak memory", "MiB", static_cast<double>(ours.peak_kib) / 1024,
        theirs ? std::optional(static_cast<double>(theirs->peak_kib) / 1024) : std::nullopt);
  }

  void restart() {
    const double ours = restart_of(ddprun_, repeat_ * 3);
    std::optional<double> theirs;
    if (!torchrun_.empty()) theirs = restart_of(torchrun_, std::max(1, repeat_ / 2));
    row("a worker's death to all 2 exec'd again", "ms", ours, theirs);
  }

  void idle() {
    const double ours = idle_of(ddprun_);
    std::optional<double> theirs;
    if (!torchrun_.empty()) theirs = idle_of(torchrun_);
    row("idle memory beside 2 workers", "MiB", ours, theirs);
  }

  void tee(int workers, std::int64_t megabytes_each) {
    const double ours = tee_of(ddprun_, workers, megabytes_each);
    std::optional<double> theirs;
    if (!torchrun_.empty()) theirs = tee_of(torchrun_, workers, megabytes_each);
    row("--tee 3, " + std::to_string(workers) + " x " + std::to_string(megabytes_each) + " MB, start included", "MB/s",
        ours, theirs);
  }

 private:
  std::vector<std::string> command(const std::string& launcher, int workers, std::vector<std::string> more) const {
    std::vector<std::string> words{launcher, "--standalone", "--nproc-per-node=" + std::to_string(workers)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  Run start_of(const std::string& launcher, int workers, int times) const {
    const auto words = command(launcher, workers, {"--no-python", "/bin/true"});
    std::vector<double> walls;
    Run result;
    for (int i = 0; i < times; ++i) {
      const Run run = measure(words, false, "");
      if (run.status != 0) fail(launcher);
      walls.push_back(run.wall_ms);
    }
    result.wall_ms = median(walls);
    for (int i = 0; i < (times >= 3 ? 3 : 1); ++i) {
      result.peak_kib = std::max(result.peak_kib, measure(words, true, "").peak_kib);
    }
    return result;
  }

  double restart_of(const std::string& launcher, int times) const {
    std::vector<double> latencies;
    for (int i = 0; i < times; ++i) {
      TempFolder folder;
      const auto words =
          command(launcher, 2, {"--max-restarts=1", "--no-python", self_, "worker-restart", folder.path});
      if (measure(words, false, "").status != 0) fail(launcher);
      const auto time_of = [&folder](const char* name) {
        std::int64_t ns = 0;
        std::ifstream(folder.path + "/" + name) >> ns;
        return ns;
      };
      latencies.push_back(static_cast<double>(std::max(time_of("again.0"), time_of("again.1")) - time_of("died")) /
                          1e6);
    }
    return median(latencies);
  }

  double idle_of(const std::string& launcher) const {
    TempFolder folder;
    const Child child = launch(command(launcher, 2, {"--no-python", self_, "worker-idle", folder.path}));
    wait_for(folder.path + "/up.0");
    wait_for(folder.path + "/up.1");
    std::this_thread::sleep_for(std::chrono::seconds(1));  // what the start needed is given back
    const long kib = tree_memory_kib(child.pid, self_);
    signal_process(child.pid, SIGTERM);
    ::waitpid(child.pid, nullptr, 0);
    return static_cast<double>(kib) / 1024;
  }

  double tee_of(const std::string& launcher, int workers, std::int64_t megabytes_each) const {
    TempFolder folder;
    const auto words = command(launcher, workers,
                               {"--tee=3", "--log-dir=" + folder.path, "--no-python", self_, "worker-loud",
                                std::to_string(megabytes_each * 1'000'000)});
    const Child child = launch(words, (folder.path + "/console").c_str());
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    const double seconds = milliseconds_since(child.begin) / 1000;
    if (status != 0) fail(launcher);
    check_console(launcher, folder.path + "/console", workers, megabytes_each * 1'000'000);
    return static_cast<double>(workers * megabytes_each) / seconds;
  }

  // Every line of every worker, whole.
  static void check_console(const std::string& launcher, const std::string& path, int workers, std::int64_t bytes) {
    std::vector<std::int64_t> seen(static_cast<std::size_t>(workers), 0);
    std::int64_t torn = 0;
    std::ifstream console(path);
    for (std::string line; std::getline(console, line);) {
      int prefix = -1, rank = -1, end = 0;
      const bool whole = std::sscanf(line.c_str(), "[default%d]:rank %d %n", &prefix, &rank, &end) == 2 &&
                         prefix == rank && rank >= 0 && rank < workers &&
                         line.find_first_not_of('x', static_cast<std::size_t>(end)) == std::string::npos;
      if (whole) {
        seen[static_cast<std::size_t>(rank)] += static_cast<std::int64_t>(line.size() - line.find(':'));
      } else {
        ++torn;
      }
    }
    const auto lost = std::count_if(seen.begin(), seen.end(), [bytes](std::int64_t n) { return n < bytes; });
    if (torn != 0 || lost != 0) {
      std::printf("  %s: %lld torn lines, %lld workers with lines lost\n", launcher.c_str(),
                  static_cast<long long>(torn), static_cast<long long>(lost));
    }
  }

  [[noreturn]] static void fail(const std::string& launcher) {
    std::cerr << "launch_bench: " << launcher << " failed\n";
    std::exit(1);
  }

  static void row(const std::string& what, const char* unit, double ours, std::optional<double> theirs) {
    const bool more_is_better = std::strcmp(unit, "MB/s") == 0;
    if (theirs) {
      std::printf("%-44s %10.1f %10.1f %-5s %8.1fx\n", what.c_str(), ours, *theirs, unit,
                  more_is_better ? ours / *theirs : *theirs / ours);
    } else {
      std::printf("%-44s %10.1f %10s %-5s\n", what.c_str(), ours, "-", unit);
    }
    std::fflush(stdout);
  }

  std::string self_, ddprun_, torchrun_;
  int repeat_;
};

std::string default_torchrun() {
  const char* const cache = ::getenv("XDG_CACHE_HOME");
  const char* const home = ::getenv("HOME");
  const std::string base = cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache";
  const std::string path = base + "/ddprun-tests/bin/torchrun";
  return there(path) ? path : "";
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string first = words.empty() ? "" : words[0];
  if (first == "worker-restart") return restart_worker(words.at(1));
  if (first == "worker-loud") return loud_worker(std::atoll(words.at(1).c_str()));
  if (first == "worker-idle") return note_time(words.at(1) + "/up." + ::getenv("RANK")), ::pause();

  std::string torchrun = default_torchrun(), only;
  int repeat = 5;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    if (words[i] == "--torchrun") torchrun = words[i + 1];
    if (words[i] == "--repeat") repeat = std::max(1, std::atoi(words[i + 1].c_str()));
    if (words[i] == "--only") only = words[i + 1];
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string ddprun = DDPRUN_BINARY_DIR "/ddprun";
  if (!there(ddprun)) {
    std::cerr << "launch_bench: " << ddprun << " is not built\n";
    return 1;
  }
  std::printf("%-44s %10s %10s\n", "", "ddprun", torchrun.empty() ? "no torchrun" : "torchrun");
  Bench bench(self, ddprun, torchrun, repeat);
  const auto wanted = [&only](const char* name) { return only.empty() || only == name; };
  if (wanted("start")) {
    for (const int workers : {2, 8, 64}) bench.start(workers);
  }
  if (wanted("restart")) bench.restart();
  if (wanted("idle")) bench.idle();
  if (wanted("tee")) {
    bench.tee(2, 100);
    bench.tee(64, 5);
  }
  return 0;
}
