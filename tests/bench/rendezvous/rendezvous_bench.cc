// What the rendezvous costs.
//   rendezvous_bench [--agents N] [--python FILE]
//     1. N connections (default 1000) join and get ranks: first connect to last Assignment
//     2. one of them closes: until each of the others is told (p50, p99, most); the close grace is part of it
//     3. Membership alone, 12,500 nodes x 8 ranks: CPU time of a join storm, of 1 % failures, of an elastic change
//     4. 2..32 ddprun processes meet (start of the first to "rendezvous complete" of the last) beside torch's c10d
//        rendezvous (handlers in processes that have imported torch already; python = one with torch)
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/rdzv_protocol.h"
#include "common/tcp.h"
#include "common/wire.h"
#include "rendezvous/net/listeners.h"
#include "rendezvous/server/server.h"

namespace {

using namespace ddprun;
using std::chrono::milliseconds;
using std::chrono::seconds;

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "rendezvous_bench: {}\n", why);
  std::exit(1);
}

template <typename T>
T must(Result<T> result) {
  if (!result) give_up(result.error().message());
  return std::move(result).value();
}

double ms_between(TimePoint a, TimePoint b) { return std::chrono::duration<double, std::milli>(b - a).count(); }

double cpu_ms() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

rdzv::NodeInfo node_info(int i, int nnodes_min, int nnodes_max) {
  rdzv::NodeInfo info;
  info.run_id = RunId("bench");
  info.node_id = NodeId(fmt::format("node-{}", i));
  info.host = fmt::format("node{}", i);
  info.address = fmt::format("10.{}.{}.{}", i / 65536, i / 256 % 256, i % 256);
  info.job.nnodes_min = nnodes_min;
  info.job.nnodes_max = nnodes_max;
  info.nproc = 8;
  info.job.max_restarts = 10;
  return info;
}

// The server in a process of its own, so that its CPU is not ours.
struct Server {
  pid_t pid = 0;
  std::uint16_t port = 0;

  Server() {
    ListenOptions listen;
    listen.scope = ListenScope::loopback;
    Listener listener = must(tcp_listen(listen));
    port = listener.port;
    pid = ::fork();
    if (pid == 0) {
      boost::asio::io_context io(1);
      rendezvous::RendezvousServer server(io, std::move(listener), rendezvous::ServerOptions());
      io.run();
      ::_exit(0);
    }
  }
  ~Server() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

struct Agent {
  UniqueFd fd;
  std::string unread;

  // The next frame that is there; "" if it is not whole yet.
  std::string next_frame() {
    if (unread.size() < 4) return "";
    const std::uint32_t length = WireReader(std::string_view(unread)).u32();
    if (unread.size() < 4 + length) return "";
    std::string frame = unread.substr(4, length);
    unread.erase(0, 4 + length);
    return frame;
  }
};

// Waits until `wanted` agents have got a message of type T; when each got it.
template <typename T>
std::vector<double> wait_for(std::vector<Agent>& agents, std::size_t wanted, TimePoint begin) {
  std::vector<pollfd> polls;
  for (const Agent& agent : agents) {
    pollfd p{};
    p.fd = agent.fd.get();
    p.events = POLLIN;
    polls.push_back(p);
  }
  std::vector<double> times;
  const TimePoint limit = begin + seconds(60);
  char buffer[65536];
  while (times.size() < wanted) {
    if (SteadyClock::now() > limit) give_up(fmt::format("only {} of {} agents were told", times.size(), wanted));
    ::poll(polls.data(), polls.size(), 1000);
    for (std::size_t i = 0; i < polls.size(); ++i) {
      if ((polls[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      const ssize_t got = ::read(agents[i].fd.get(), buffer, sizeof buffer);
      if (got <= 0) give_up("the server closed a connection");
      agents[i].unread.append(buffer, static_cast<std::size_t>(got));
      for (std::string frame = agents[i].next_frame(); !frame.empty(); frame = agents[i].next_frame()) {
        if (std::holds_alternative<T>(must(rdzv::decode_server(frame)))) {
          times.push_back(ms_between(begin, SteadyClock::now()));
        }
      }
    }
  }
  return times;
}

void connections(int count) {
  const Server server;
  std::vector<Agent> agents(static_cast<std::size_t>(count));
  const TimePoint begin = SteadyClock::now();
  const TimePoint limit = begin + seconds(60);
  const Endpoint endpoint{"127.0.0.1", server.port};
  for (Agent& agent : agents) {
    agent.fd = must(tcp_connect(endpoint, limit));
    if (!write_all(agent.fd.get(), rdzv::encode(rdzv::Hello()), limit)) give_up("the opening cannot be sent");
  }
  for (int i = 0; i < count; ++i) {
    const int fd = agents[static_cast<std::size_t>(i)].fd.get();
    char head[rdzv::kHelloReplyFixedBytes];
    if (!read_exact(fd, head, sizeof head, limit)) give_up("no answer to the opening");
    const auto parsed = must(rdzv::decode_hello_reply_head(std::string_view(head, sizeof head)));
    std::string why(parsed.why_bytes, '\0');
    if (!read_exact(fd, why.data(), why.size(), limit)) give_up("no answer to the opening");
    rdzv::Join join;
    join.node = node_info(i, count / 2, count);
    if (!write_all(fd, rdzv::encode(join), limit)) give_up("join");
  }
  const auto ranks = wait_for<rdzv::Assignment>(agents, agents.size(), begin);
  fmt::print("{} connections, join to ranks: {:.0f} ms (first connect to last Assignment)\n", count, ranks.back());

  agents.pop_back();  // closes its connection
  const TimePoint lost = SteadyClock::now();
  auto told = wait_for<rdzv::Restart>(agents, agents.size(), lost);
  std::sort(told.begin(), told.end());
  fmt::print(
      "node lost to {} others told: p50 {:.0f} ms, p99 {:.0f} ms, last {:.0f} ms ({} ms of it is the close grace)\n",
      told.size(), told[told.size() / 2], told[told.size() * 99 / 100], told.back(),
      milliseconds(rendezvous::Membership::kCloseGrace).count());
}

void membership() {
  constexpr int kNodes = 12'500, kSpares = 125;
  rendezvous::Membership m{RunId("bench")};
  TimePoint now(seconds(1'000));
  std::size_t bytes = 0, messages = 0;
  const auto take = [&](const rendezvous::Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* send = std::get_if<rendezvous::Send>(&action)) {
        ++messages;
        bytes += rdzv::encode(send->message).size();
      }
    }
  };
  const auto measure = [&](const char* what, auto work) {
    bytes = messages = 0;
    const double begin = cpu_ms();
    work();
    fmt::print("membership, 12,500 nodes x 8 ranks, {}: {:.0f} ms CPU, {} messages, {:.0f} bytes each\n", what,
               cpu_ms() - begin, messages, static_cast<double>(bytes) / static_cast<double>(messages));
  };
  const auto join = [&](int i, std::int64_t last) {
    rdzv::Join request;
    request.node = node_info(i, kNodes / 2, kNodes - kSpares);
    request.last_round = Round(last);
    take(m.on(request, now));
  };
  measure("join storm", [&] {
    for (int i = 0; i < kNodes; ++i) join(i, 0);
  });
  measure("1 % of the nodes report failed workers, all join again", [&] {
    for (int i = 0; i < kNodes - kSpares; i += 100) {
      rdzv::Failure failure;
      failure.record.round = m.round();
      failure.record.exit_code = 1;
      take(m.on(node_info(i, 0, 0).node_id, failure, now));
    }
    const std::int64_t last = m.round().value;
    for (int i = 0; i < kNodes - kSpares; ++i) join(i, last);
  });
  measure("1 % of the nodes are lost, spares take over", [&] {
    for (int i = 0; i < kNodes - kSpares; i += 100) take(m.disconnected(node_info(i, 0, 0).node_id, now));
    now += rendezvous::Membership::kCloseGrace;
    take(m.tick(now));
    const std::int64_t last = m.round().value;
    for (int i = 0; i < kNodes - kSpares; ++i) {
      if (i % 100 != 0) join(i, last);
    }
  });
  if (m.phase() != rendezvous::Phase::running) give_up("the last round did not form");
}

// Runs a command, returns the number that its last line begins with; negative when it failed.
double number_from(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return -1;
  char line[256];
  double value = -1;
  while (std::fgets(line, sizeof line, pipe) != nullptr) value = std::atof(line);
  return ::pclose(pipe) == 0 ? value : -1;
}

void beside_torch(const std::string& python) {
  const std::string folder = DDPRUN_SOURCE_DIR "/tests/bench/rendezvous/";
  for (const int agents : {2, 4, 8, 16, 32}) {
    const double ours = number_from(fmt::format("python3 {}meet.py {} {}", folder, DDPRUN_BINARY_DIR, agents));
    const double torch =
        python.empty() ? -1 : number_from(fmt::format("{} {}torch_meet.py {} 2>/dev/null", python, folder, agents));
    fmt::print("{:2} agents meet: ddprun {:.0f} ms (processes started included)", agents, ours);
    if (torch > 0) fmt::print(", torch c10d {:.0f} ms (torch imported before): {:.0f} times", torch, torch / ours);
    fmt::print("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  int agents = 1'000;
  std::string python;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--agents") agents = std::atoi(argv[i + 1]);
    if (name == "--python") python = argv[i + 1];
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  rendezvous::raise_descriptor_limit();
  membership();
  connections(agents);
  beside_torch(python);
  return 0;
}
