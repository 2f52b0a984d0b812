// Our store server and torch's, under the same client in the same minute.
//
//   store_bench --python PYTHON [--ours build/release/tests/store_serve] [--seconds S] [--rounds N] [--only WORD]
//
// Both servers run at once, idle while the other is asked; rows alternate between them. Prints one markdown row per
// measurement: ours, libuv, ratio (round trips a second, p50, p99, the server's CPU time for one). PYTHON has torch
// installed; without it only our server is measured. `--ours .../store_floor_server --only add` (or wait) shows what
// the kernel alone costs.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/store_protocol.h"
#include "tests/bench/store/load.h"

namespace {

using namespace ddprun;
using bench::Latency;

struct Server {
  std::string name;
  pid_t pid = 0;
  int input = -1;
  std::uint16_t port = 0;
};

Server start(const std::string& name, const std::vector<std::string>& command) {
  int input[2];
  int output[2];
  if (::pipe(input) != 0 || ::pipe(output) != 0) std::exit(1);
  ::fcntl(input[1], F_SETFD, FD_CLOEXEC);
  ::fcntl(output[0], F_SETFD, FD_CLOEXEC);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  Server server{.name = name, .pid = ::fork(), .input = input[1], .port = 0};
  if (server.pid == 0) {
    ::dup2(input[0], 0);
    ::dup2(output[1], 1);
    ::execvp(argv[0], argv.data());
    std::perror(argv[0]);
    std::_Exit(127);
  }
  ::close(input[0]);
  ::close(output[1]);
  FILE* lines = ::fdopen(output[0], "r");
  char line[256];
  unsigned port = 0;
  while (port == 0 && std::fgets(line, sizeof line, lines) != nullptr) std::sscanf(line, "port %u", &port);
  if (port == 0) {
    std::fprintf(stderr, "store_bench: %s did not start\n", name.c_str());
    std::exit(1);
  }
  server.port = static_cast<std::uint16_t>(port);
  return server;
}

void stop(Server& server) {
  ::close(server.input);
  ::waitpid(server.pid, nullptr, 0);
}

struct Options {
  std::string python;
  std::string ours;
  std::string only;
  double seconds = 0.5;
  int rounds = 3;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(Options options, std::vector<Server> servers) : options_(std::move(options)), servers_(std::move(servers)) {}

  bool wanted(const std::string& row) const { return row.find(options_.only) != std::string::npos; }

  // Rounds alternate between the servers; each number is the median of its rounds.
  void round_trips(const std::string& row, int clients, const std::string& request, std::size_t reply) {
    if (!wanted(row)) return;
    std::vector<std::vector<double>> rate(servers_.size()), p50(servers_.size()), p99(servers_.size()),
        cpu(servers_.size());
    for (int round = 0; round < options_.rounds; ++round) {
      for (std::size_t s = 0; s < servers_.size(); ++s) {
        const Latency latency =
            bench::round_trips(servers_[s].port, servers_[s].pid, clients, request, reply, options_.seconds);
        rate[s].push_back(latency.per_second);
        p50[s].push_back(latency.p50_us);
        p99[s].push_back(latency.p99_us);
        cpu[s].push_back(latency.server_cpu_us);
      }
    }
    std::printf("| %s, %d clients |", row.c_str(), clients);
    for (std::size_t s = 0; s < servers_.size(); ++s) {
      std::printf(" %.0f/s, %.0f, %.0f, %.1f us |", median(rate[s]), median(p50[s]), median(p99[s]), median(cpu[s]));
    }
    if (servers_.size() > 1) {
      std::printf(" %.2f, %.2f, %.2f, %.2f |", median(rate[0]) / median(rate[1]), median(p50[1]) / median(p50[0]),
                  median(p99[1]) / median(p99[0]), median(cpu[1]) / median(cpu[0]));
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  template <typename Measure>
  void seconds(const std::string& row, int rounds, Measure measure) {
    if (!wanted(row)) return;
    std::vector<std::vector<double>> times(servers_.size());
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t s = 0; s < servers_.size(); ++s) times[s].push_back(measure(servers_[s]));
    }
    print(row, times, "s", 1);
  }

  void print(const std::string& row, const std::vector<std::vector<double>>& values, const char* unit, double scale) {
    std::printf("| %s |", row.c_str());
    for (const auto& v : values) std::printf(" %.4g %s |", median(v) * scale, unit);
    if (values.size() > 1) std::printf(" %.2f |", median(values[1]) / median(values[0]));
    std::printf("\n");
    std::fflush(stdout);
  }

  void storms(int clients) {
    const std::string row = "storm of " + std::to_string(clients);
    if (!wanted(row)) return;
    std::vector<std::vector<double>> connects(servers_.size()), barriers(servers_.size()), cpu(servers_.size());
    int lost = 0;
    for (int round = 0; round < options_.rounds; ++round) {
      for (std::size_t s = 0; s < servers_.size(); ++s) {
        const std::string key = "/barrier/" + std::to_string(clients) + "/" + std::to_string(round);
        const double before = bench::cpu_s(servers_[s].pid);
        const auto storm = bench::storm(servers_[s].port, clients, 8, key);
        connects[s].push_back(storm.connect_s);
        barriers[s].push_back(storm.barrier_s);
        cpu[s].push_back(bench::cpu_s(servers_[s].pid) - before);
        lost += storm.lost;
      }
    }
    print(row + ": connect, VALIDATE, PING", connects, "ms", 1e3);
    print(row + ": barrier on a fresh key", barriers, "ms", 1e3);
    std::vector<std::vector<double>> sums(servers_.size());
    for (std::size_t s = 0; s < servers_.size(); ++s) {
      for (std::size_t i = 0; i < connects[s].size(); ++i) sums[s].push_back(connects[s][i] + barriers[s][i]);
    }
    print(row + ": both", sums, "ms", 1e3);
    print(row + ": CPU time of the server", cpu, "ms", 1e3);
    if (lost > 0) std::printf("| %s: clients lost | %d |\n", row.c_str(), lost);
  }

  void idle_memory(int clients) {
    const std::string row = "memory per idle connection";
    if (!wanted(row)) return;
    std::vector<std::vector<double>> bytes(servers_.size());
    for (std::size_t s = 0; s < servers_.size(); ++s) {
      const long before = bench::rss_kib(servers_[s].pid);
      std::vector<int> fds;
      for (int i = 0; i < clients; ++i) fds.push_back(bench::connect_store(servers_[s].port));
      bytes[s].push_back(static_cast<double>(bench::rss_kib(servers_[s].pid) - before) * 1024 / clients);
      for (const int fd : fds) ::close(fd);
    }
    print(row, bytes, "B", 1);
  }

 private:
  Options options_;
  std::vector<Server> servers_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.ours = std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1) + "store_serve";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--python") options.python = argv[i + 1];
    if (name == "--ours") options.ours = argv[i + 1];
    if (name == "--only") options.only = argv[i + 1];
    if (name == "--seconds") options.seconds = std::atof(argv[i + 1]);
    if (name == "--rounds") options.rounds = std::atoi(argv[i + 1]);
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);

  std::vector<Server> servers{start("ours", {options.ours})};
  if (!options.python.empty()) {
    servers.push_back(start("libuv", {options.python, DDPRUN_SOURCE_DIR "/tests/bench/store/libuv_server.py"}));
  }
  std::printf("| row | ours |%s\n|---|---|%s\n",
              servers.size() > 1 ? " torch libuv | ratio (> 1: ours is ahead) |" : "",
              servers.size() > 1 ? "---|---|" : "");
  Bench bench(options, servers);
  bench.idle_memory(4000);

  for (const std::size_t size : {std::size_t{64}, std::size_t{65536}}) {
    const std::string value(size, 'v');
    const std::string key = "/k" + std::to_string(size);
    const std::string name = size == 64 ? "64 B" : "64 KB";
    for (const Server& server : servers) {
      const int fd = bench::connect_store(server.port);
      std::string set;
      store_wire::set(set, key, value);
      store_wire::ping(set, 2);
      bench::send_all(fd, set);
      bench::receive_all(fd, 4);
      ::close(fd);
    }
    std::string get, compare_set, add, wait;
    store_wire::get(get, key);
    store_wire::compare_set(compare_set, key, value, value);
    store_wire::add(add, "/counter", 1);
    const std::string names[1] = {key};
    store_wire::keys(wait, StoreOp::wait, names);
    for (const int clients : {1, 8, 64}) {
      bench.round_trips("get " + name, clients, get, 8 + size);
      bench.round_trips("compare_set " + name, clients, compare_set, 8 + size);
      if (size != 64) continue;
      bench.round_trips("add", clients, add, 8);
      bench.round_trips("wait", clients, wait, 1);
    }
  }

  std::vector<std::string> keys;
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = 0; i < 64000; ++i) {
    keys.push_back("/multi/" + std::to_string(100000 + i));
    pairs.emplace_back(keys.back(), std::string(64, 'v'));
  }
  std::string multi_set, multi_get;
  store_wire::multi_set(multi_set, pairs);
  store_wire::ping(multi_set, 3);
  store_wire::keys(multi_get, StoreOp::multi_get, keys);
  bench.seconds("multi_set of 64000 keys", 1, [&](const Server& server) {
    const int fd = bench::connect_store(server.port);
    const double start_s = bench::now_s();
    bench::send_all(fd, multi_set);
    bench::receive_all(fd, 4);
    ::close(fd);
    return bench::now_s() - start_s;
  });
  bench.seconds("multi_get of 64000 keys", 1, [&](const Server& server) {
    const int fd = bench::connect_store(server.port);
    const double start_s = bench::now_s();
    bench::send_all(fd, multi_get);
    bench::receive_all(fd, 64000 * 72);
    ::close(fd);
    return bench::now_s() - start_s;
  });
  bench.storms(4000);
  bench.storms(8000);
  for (Server& server : servers) stop(server);
  return 0;
}
