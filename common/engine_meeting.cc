#include "common/engine_meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>

#include "common/lookup.h"
#include "common/pmi_exchange.h"

namespace ddprun {
namespace {

using std::chrono::seconds;

constexpr std::size_t kMaxAddresses = 12;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// All that others might reach: IPv4 first. Link-local ones mean something on one host only.
std::vector<std::string> own_addresses() {
  std::vector<std::string> v4, v6;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return v4;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> text{};
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(entry->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    const std::string address = text.data();
    if (address.find('%') == std::string::npos) (family == AF_INET ? v4 : v6).push_back(address);
  }
  ::freeifaddrs(list);
  v4.insert(v4.end(), v6.begin(), v6.end());
  return v4;
}

// "1234.0;tcp://10.0.0.1,10.1.0.1:34709": mpirun's own address, which all nodes have reached; ours on the way there
// comes first.
void prefer_the_way_of(const std::string& uri, std::vector<std::string>& addresses) {
  const auto begin = uri.find("://");
  if (begin == std::string::npos) return;
  const std::string first = uri.substr(begin + 3, uri.find_first_of(",:;", begin + 3) - begin - 3);
  const auto own = local_address_towards(Endpoint{first, 1});
  const auto found = own ? std::find(addresses.begin(), addresses.end(), *own) : addresses.end();
  if (found != addresses.end()) std::rotate(addresses.begin(), found, found + 1);
}

// What `scontrol show node -o NAME` says of NodeAddr; "" if it says nothing until `deadline`.
std::string slurm_node_address(const std::string& node, TimePoint deadline) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return "";
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return "";
  if (child == 0) {
    ::dup2(theirs.get(), STDOUT_FILENO);
    ::execlp("scontrol", "scontrol", "show", "node", "-o", node.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  theirs.reset();
  std::string text;
  while (text.size() < 64 * 1024) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    pollfd one{ours.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&one, 1, static_cast<int>(left)) <= 0) break;
    std::array<char, 4096> bytes{};
    const ssize_t got = ::read(ours.get(), bytes.data(), bytes.size());
    if (got <= 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  ::kill(child, SIGKILL);  // it has said all, or says too little
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  const std::string name = " NodeAddr=";
  const auto at = text.find(name);
  if (at == std::string::npos) return "";
  const auto begin = at + name.size();
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

Result<EngineMeeting> by_rule(const EngineTask& task, TimePoint deadline) {
  EngineMeeting out;
  out.job = task.job;
  const bool one_host = task.size == task.local_size;
  std::string host = one_host || task.hosts.empty() ? "127.0.0.1" : task.hosts.front();
  if (!one_host && task.hosts.empty()) {
    return Error(Errc::not_found, "SLURM_STEP_NODELIST is not set: give --rdzv-endpoint=HOST:PORT");
  }
  if (task.node == 0 && task.local_rank == 0) {  // the host that the others ask at
    Error last(Errc::refused, "");
    for (std::uint16_t i = 0; i < kEnginePorts && !out.listener; ++i) {
      ListenOptions listen;
      listen.port = static_cast<std::uint16_t>(task.first_port + i);
      if (one_host) listen.address = host;
      auto bound = tcp_listen(listen);
      if (bound) {
        out.listener = std::move(*bound);
      } else {
        last = bound.error();
      }
    }
    if (!out.listener) {
      return std::move(last).with_context(fmt::format("none of the ports {}-{} of this Slurm job is free",
                                                      task.first_port, task.first_port + kEnginePorts - 1));
    }
    out.endpoints.push_back(Endpoint{host, out.listener->port});
    return out;
  }
  if (!one_host) {
    const TimePoint patience = std::min(deadline, SteadyClock::now() + seconds(5));
    const Lookup lookup(host);
    if (!lookup.wait(patience)) {
      const std::string address = slurm_node_address(host, std::min(deadline, SteadyClock::now() + seconds(5)));
      if (!address.empty()) host = address;
    }
  }
  for (std::uint16_t i = 0; i < kEnginePorts; ++i) {
    out.endpoints.push_back(Endpoint{host, static_cast<std::uint16_t>(task.first_port + i)});
  }
  return out;
}

// "PORT NAME ADDRESS..."
Result<EngineMeeting> by_message(const EngineTask& task, TimePoint deadline) {
  EngineMeeting out;
  std::string mine;
  const bool one_host = task.size == task.local_size;
  if (task.rank == 0) {
    ListenOptions listen;
    if (one_host) listen.address = "127.0.0.1";
    auto bound = tcp_listen(listen);
    if (!bound) return std::move(bound).error();
    auto addresses = one_host ? std::vector<std::string>{"127.0.0.1"} : own_addresses();
    prefer_the_way_of(task.meeting, addresses);
    if (addresses.size() > kMaxAddresses) addresses.resize(kMaxAddresses);
    mine = fmt::format("{} {}", bound->port, host_name());
    for (const auto& address : addresses) mine += " " + address;
    out.endpoints.push_back(Endpoint{addresses.empty() ? host_name() : addresses.front(), bound->port});
    out.listener = std::move(*bound);
  }
  auto told = pmi_exchange(task, mine, deadline);
  if (!told) return std::move(told).error();
  out.job = task.job.empty() ? told->job : task.job;
  if (task.rank == 0) return out;
  std::vector<std::string> words;
  for (std::size_t at = 0; at < told->word.size();) {
    const auto end = std::min(told->word.find(' ', at), told->word.size());
    if (end > at) words.push_back(told->word.substr(at, end - at));
    at = end + 1;
  }
  std::uint16_t port = 0;
  if (words.size() >= 2) std::from_chars(words[0].data(), words[0].data() + words[0].size(), port);
  if (port == 0) return Error(Errc::malformed, fmt::format("task 0 published '{}'", told->word));
  std::string name = words[1];
  std::rotate(words.begin() + 1, words.begin() + 2, words.end());  // the name last: it may be of another network
  for (std::size_t i = 1; i < words.size(); ++i) {
    const Endpoint endpoint{words[i], port};
    if (tcp_connect_once(endpoint, std::min(deadline, SteadyClock::now() + seconds(2)))) {
      out.endpoints.push_back(endpoint);
      return out;
    }
  }
  return Error(Errc::not_found, fmt::format("none of the addresses of node 0 answers at port {}: {} (a firewall, or no "
                                            "common network?); --rdzv-endpoint=HOST:PORT names another way",
                                            port, fmt::join(words.begin() + 1, words.end(), ", ")));
}

}  // namespace

Result<EngineMeeting> meet(const EngineTask& task, TimePoint deadline) {
  return task.engine == Engine::slurm ? by_rule(task, deadline) : by_message(task, deadline);
}

}  // namespace ddprun
