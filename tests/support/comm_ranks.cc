#include "tests/support/comm_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <thread>

#include "worker/comm/hierarchical_transport.h"
#include "worker/comm/queued_communicator.h"
#include "worker/comm/shm_transport.h"
#include "worker/comm/tcp_transport.h"

namespace ddprun::testing {
namespace {

constexpr std::size_t kEntries = 512, kKeySize = 96, kValueSize = 400;

}  // namespace

struct SharedKeyValue::Table {
  pthread_mutex_t mutex;
  struct Entry {
    char key[kKeySize];
    std::size_t size;
    char value[kValueSize];
  } entries[kEntries];
};

SharedKeyValue::SharedKeyValue() {
  void* memory = ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED, "no shared memory for the test's store");
  table_ = new (memory) Table();
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&table_->mutex, &attributes);
}

SharedKeyValue::~SharedKeyValue() { ::munmap(table_, sizeof(Table)); }

Result<void> SharedKeyValue::set(std::string_view key, std::string_view value) {
  CHECK(key.size() < kKeySize && value.size() <= kValueSize, "too long for the test's store");
  pthread_mutex_lock(&table_->mutex);
  Table::Entry* place = nullptr;
  for (auto& e : table_->entries) {
    if (key == e.key) {
      place = &e;
      break;
    }
    if (e.key[0] == '\0' && place == nullptr) place = &e;
  }
  CHECK(place != nullptr, "the test's store is full");
  std::memcpy(place->key, key.data(), key.size());
  place->key[key.size()] = '\0';
  place->size = value.size();
  std::memcpy(place->value, value.data(), value.size());
  pthread_mutex_unlock(&table_->mutex);
  return {};
}

Result<std::string> SharedKeyValue::get(std::string_view key, TimePoint deadline) {
  while (true) {
    pthread_mutex_lock(&table_->mutex);
    for (auto& e : table_->entries) {
      if (key == e.key) {
        std::string value(e.value, e.size);
        pthread_mutex_unlock(&table_->mutex);
        return value;
      }
    }
    pthread_mutex_unlock(&table_->mutex);
    if (SteadyClock::now() >= deadline) return Error(Errc::timed_out, "no key " + std::string(key));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<void> SharedKeyValue::erase(std::string_view key) {
  pthread_mutex_lock(&table_->mutex);
  for (auto& e : table_->entries) {
    if (key == e.key) e.key[0] = '\0';
  }
  pthread_mutex_unlock(&table_->mutex);
  return {};
}

std::vector<RankOutcome> run_ranks(int size, const std::function<std::string(RankContext&)>& body,
                                   std::chrono::seconds limit, const Meanwhile& meanwhile) {
  SharedKeyValue store;
  std::vector<int> pids, pipes;
  for (int r = 0; r < size; ++r) {
    int ends[2];
    CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
    const pid_t pid = ::fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
      for (int fd : pipes) ::close(fd);
      ::close(ends[0]);
      std::string text;
      try {
        RankContext context;
        context.rank = r;
        context.size = size;
        context.store = &store;
        text = body(context);
      } catch (const std::exception& e) {
        text = std::string("exception: ") + e.what();
      }
      for (std::size_t at = 0; at < text.size();) {
        const ssize_t n = ::write(ends[1], text.data() + at, text.size() - at);
        if (n <= 0) break;
        at += static_cast<std::size_t>(n);
      }
      ::_exit(text.empty() ? 0 : 1);
    }
    ::close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  if (meanwhile) meanwhile(pids, store);

  std::vector<RankOutcome> outcomes(static_cast<std::size_t>(size));
  const TimePoint deadline = SteadyClock::now() + limit;
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    RankOutcome& outcome = outcomes[r];
    char buffer[4096];
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
      pollfd p{pipes[r], POLLIN, 0};
      const int n = ::poll(&p, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
      if (n == 0) {
        outcome.overran = true;
        for (int pid : pids) ::kill(pid, SIGKILL);
        break;
      }
      const ssize_t got = ::read(pipes[r], buffer, sizeof buffer);
      if (got <= 0) break;
      outcome.text.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(pipes[r]);
    if (outcome.overran) ::kill(pids[r], SIGKILL);
    int status = 0;
    ::waitpid(pids[r], &status, 0);
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  }
  return outcomes;
}

std::string problems(const std::vector<RankOutcome>& outcomes) {
  std::string text;
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const RankOutcome& o = outcomes[r];
    if (o.exit_code == 0 && o.text.empty()) continue;
    text += "rank " + std::to_string(r) + ": ";
    if (o.overran) text += "overran its limit; ";
    if (o.signal != 0) text += "signal " + std::to_string(o.signal) + "; ";
    text += o.text + "\n";
  }
  return text;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::shm:
      return "shm";
    case Kind::shm_threads:
      return "shm_threads";
    case Kind::tcp:
      return "tcp";
    case Kind::two_hosts:
      return "two_hosts";
    case Kind::uneven_hosts:
      return "uneven_hosts";
  }
  return "unknown";
}

namespace {

Result<std::unique_ptr<comm::Transport>> make_shm(RankContext& context, const std::string& name, TimePoint deadline) {
  comm::ShmPlace place;
  place.key = "/ddprun/shm/" + name;
  place.rank = context.rank;
  place.local_rank = context.rank;
  place.local_size = context.size;
  auto setup = comm::connect_shm(*context.store, place, deadline);
  if (!setup) return setup.error();
  // Small staging buffers: every test that is not tiny goes through several segments.
  auto group = comm::ShmGroup::create(std::move(setup).value(), 32 * 1024);
  if (!group) return group.error();
  return comm::make_shm_transport(std::move(group).value());
}

Result<std::unique_ptr<comm::Transport>> make_tcp(RankContext& context, const std::string& name, TimePoint deadline) {
  comm::RingPlace place;
  place.key = "/ddprun/tcp/" + name;
  place.index = context.rank;
  for (int r = 0; r < context.size; ++r) place.ranks.push_back(r);
  place.address = context.address;
  auto ring = comm::TcpRing::connect(*context.store, place, deadline);
  if (!ring) return ring.error();
  return comm::make_tcp_transport(std::move(ring).value());
}

Result<std::unique_ptr<comm::Transport>> make_hosts(RankContext& context, int first_host, const std::string& name,
                                                    TimePoint deadline) {
  comm::HostMap hosts;
  hosts.first_rank = {0, first_host};
  hosts.size = {first_host, context.size - first_host};
  hosts.host = hosts.host_of(context.rank);
  const auto host = static_cast<std::size_t>(hosts.host);
  comm::ShmPlace shm;
  shm.key = "/ddprun/shm/" + name + "/" + std::to_string(host);
  shm.rank = context.rank;
  shm.local_rank = context.rank - hosts.first_rank[host];
  shm.local_size = hosts.size[host];
  auto setup = comm::connect_shm(*context.store, shm, deadline);
  if (!setup) return setup.error();
  auto group = comm::ShmGroup::create(std::move(setup).value(), 32 * 1024);
  if (!group) return group.error();
  std::unique_ptr<comm::TcpRing> ring;
  if (shm.local_rank < hosts.rings()) {
    comm::RingPlace place;
    place.key = "/ddprun/tcp/" + name + "/" + std::to_string(shm.local_rank);
    place.index = hosts.host;
    place.ranks = hosts.ring(shm.local_rank);
    place.address = context.address;
    auto made = comm::TcpRing::connect(*context.store, place, deadline);
    if (!made) return made.error();
    ring = std::move(made).value();
  }
  return comm::make_hierarchical_transport(std::move(group).value(), std::move(ring), hosts, deadline);
}

}  // namespace

Result<std::unique_ptr<comm::Communicator>> make_test_communicator(Kind kind, RankContext& context,
                                                                   std::chrono::milliseconds timeout,
                                                                   const std::string& name) {
  const TimePoint deadline = SteadyClock::now() + std::chrono::seconds(60);
  auto transport = kind == Kind::tcp            ? make_tcp(context, name, deadline)
                   : kind == Kind::two_hosts    ? make_hosts(context, (context.size + 1) / 2, name, deadline)
                   : kind == Kind::uneven_hosts ? make_hosts(context, 1, name, deadline)
                                                : make_shm(context, name, deadline);
  if (!transport) return transport.error();
  comm::QueuedCommunicator::Options options;
  options.timeout = timeout;
  options.progress_thread = kind == Kind::shm_threads;
  auto recorder = FlightWriter::attach(-1, context.rank, context.size, 0);
  if (!recorder) return recorder.error();
  options.recorder = std::move(recorder).value();
  return std::unique_ptr<comm::Communicator>(
      std::make_unique<comm::QueuedCommunicator>(std::move(transport).value(), std::move(options)));
}

bool eventually(const std::function<bool()>& condition) {
  const TimePoint deadline = SteadyClock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (SteadyClock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace ddprun::testing
