#include "common/lookup.h"

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "common/unique_fd.h"

namespace ddprun {
namespace {

Result<Lookup::Addresses> ask(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  const std::string problem = "host name '" + host + "' cannot be resolved: ";
  if (rc != 0) return Error(Errc::not_found, problem + ::gai_strerror(rc));
  Lookup::Addresses found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    if (std::find(found.begin(), found.end(), text.data()) == found.end()) found.emplace_back(text.data());
  }
  ::freeaddrinfo(list);
  if (found.empty()) return Error(Errc::not_found, problem + "it has no address");
  return found;
}

}  // namespace

struct Lookup::State {
  explicit State(std::string name) : host(std::move(name)) {}
  void set(Result<Addresses> value) {
    result = std::move(value);
    done = true;
  }

  std::string host;
  UniqueFd done_event;
  std::atomic<bool> done{false};
  std::optional<Result<Addresses>> result;  // written before `done`
};

Lookup::Lookup(const std::string& host) : state_(std::make_shared<State>(host)) {
  if (host == "localhost") {
    state_->set(Addresses{"127.0.0.1", "::1"});
  } else if (auto numeric = ask(host, AI_NUMERICHOST)) {
    state_->set(std::move(numeric));
  } else {
    ask_on_a_thread();
  }
}

void Lookup::ask_on_a_thread() {
  const std::string what = "cannot look up '" + state_->host + "': ";
  state_->done_event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state_->done_event) return state_->set(Error::from_errno(errno, what + "eventfd"));
  sigset_t all, before;  // whatever the program does with its signals is not for this thread
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  try {
    std::thread([shared = state_] {
      shared->set(ask(shared->host, AI_ADDRCONFIG));
      ::eventfd_write(shared->done_event.get(), 1);
    }).detach();
  } catch (const std::system_error& error) {
    state_->set(Error(Errc::system, what + "no thread: " + error.what()));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

int Lookup::fd() const { return state_->done ? -1 : state_->done_event.get(); }

std::optional<Result<Lookup::Addresses>> Lookup::answer() const {
  if (!state_->done) return std::nullopt;
  return state_->result;
}

Result<Lookup::Addresses> Lookup::wait(TimePoint deadline) const {
  while (!state_->done) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    if (left <= 0) {
      return Error(Errc::timed_out, "host name '" + state_->host + "' was not resolved in time (DNS does not answer)");
    }
    pollfd entry{state_->done_event.get(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, 1'000'000'000)));
  }
  return *state_->result;
}

}  // namespace ddprun
