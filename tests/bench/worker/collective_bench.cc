// Measures all-reduce (sum of f32) over processes of this host. collective_bench.py runs it interleaved with torch Gloo
// and Open MPI and makes the table of worker/README.md. One line a measurement: NAME RANKS BYTES BEST_US MEDIAN_US
//   collective_bench copy|owned|foreign|tcp RANKS ROUNDS BYTES...
// copy: all ranks memcpy the same bytes at once, the limit. owned: the communicator's memory. foreign: any other.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/comm_ranks.h"
#include "worker/comm/queued_communicator.h"
#include "worker/comm/shm_transport.h"
#include "worker/comm/tcp_transport.h"

namespace {

using namespace ddprun;
using testing::RankContext;

Result<std::unique_ptr<comm::Transport>> connect(RankContext& context, const std::string& name) {
  const TimePoint deadline = SteadyClock::now() + std::chrono::seconds(30);
  if (name == "tcp") {
    comm::RingPlace place;
    place.key = "tcp";
    place.index = context.rank;
    for (int r = 0; r < context.size; ++r) place.ranks.push_back(r);
    place.address = "127.0.0.1";
    auto ring = comm::TcpRing::connect(*context.store, place, deadline);
    if (!ring) return ring.error();
    return comm::make_tcp_transport(std::move(ring).value());
  }
  comm::ShmPlace place;
  place.key = "shm";
  place.rank = place.local_rank = context.rank;
  place.local_size = context.size;
  auto setup = comm::connect_shm(*context.store, place, deadline);
  if (!setup) return setup.error();
  const char* staging = std::getenv("DDPRUN_BENCH_STAGING");  // bytes; to find the best size
  auto group = comm::ShmGroup::create(std::move(setup).value(),
                                      staging != nullptr ? std::strtoul(staging, nullptr, 10) : 512 * 1024);
  if (!group) return group.error();
  return comm::make_shm_transport(std::move(group).value());
}

// A core for each rank, as a launcher would bind them; with more ranks than cores they take turns.
void bind_to_core(int rank) {
  cpu_set_t all, one;
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  int skip = rank % CPU_COUNT(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || skip-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

std::string measure(RankContext& context, const std::string& name, int rounds, const std::vector<std::size_t>& sizes) {
  bind_to_core(context.rank);
  auto transport = connect(context, name);
  RANK_OK(transport);
  comm::QueuedCommunicator c(std::move(transport).value(), {});
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  auto memory = c.allocate(most);
  RANK_OK(memory);
  std::vector<float> foreign(most / 4), other(most / 4);
  for (const std::size_t bytes : sizes) {
    float* data = name == "owned" ? reinterpret_cast<float*>(*memory) : foreign.data();
    const int repeat = bytes < 65536 ? 100 : 1;  // too short for one reading of the clock
    std::vector<double> times;
    for (int i = -3; i < rounds; ++i) {
      RANK_OK(c.barrier());
      const TimePoint before = SteadyClock::now();
      for (int k = 0; k < repeat; ++k) {
        if (name == "copy") {
          std::memcpy(other.data(), data, bytes);
          asm volatile("" : : "r"(other.data()) : "memory");
        } else {
          RANK_OK(c.all_reduce(comm::Block{data, bytes / 4, comm::DType::f32}, comm::Reduce::sum).wait());
        }
      }
      double us = std::chrono::duration<double, std::micro>(SteadyClock::now() - before).count() / repeat;
      // "At once" counts: the slowest rank's copy.
      if (name == "copy") RANK_OK(c.all_reduce(comm::Block{&us, 1, comm::DType::f64}, comm::Reduce::max).wait());
      if (i >= 0) times.push_back(us);
    }
    std::sort(times.begin(), times.end());
    if (context.rank == 0) {
      std::printf("%s %d %zu %.2f %.2f\n", name.c_str(), context.size, bytes, times.front(), times[times.size() / 2]);
      std::fflush(stdout);
    }
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: collective_bench copy|owned|foreign|tcp RANKS ROUNDS BYTES...\n");
    return 2;
  }
  const std::string name = argv[1];
  const int rounds = std::atoi(argv[3]);
  std::vector<std::size_t> sizes;
  for (int i = 4; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  const auto outcomes = testing::run_ranks(
      std::atoi(argv[2]), [&](RankContext& context) { return measure(context, name, rounds, sizes); },
      std::chrono::seconds(300));
  const std::string wrong = testing::problems(outcomes);
  if (!wrong.empty()) std::fprintf(stderr, "%s", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}
