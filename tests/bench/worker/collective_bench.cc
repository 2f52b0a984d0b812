// Measures all-reduce on this host, side by side in the same minute: our shared memory (owned and foreign memory), our
// TCP ring, and the limit: all ranks memcpy the same bytes at once. collective_bench.py adds torch Gloo and Open MPI
// rows and makes the table. Prints one line a measurement: NAME RANKS BYTES BEST_US MEDIAN_US
//   collective_bench NAME RANKS FROM_BYTES TO_BYTES ROUNDS      NAME: copy, owned, foreign, tcp
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/comm_ranks.h"
#include "worker/comm/queued_communicator.h"
#include "worker/comm/shm_transport.h"

namespace {

using namespace ddprun;
using testing::RankContext;

std::string measure(RankContext& context, const std::string& name, std::size_t from, std::size_t to, int rounds) {
  comm::ShmPlace place;
  place.key = "bench";
  place.rank = place.local_rank = context.rank;
  place.local_size = context.size;
  auto setup = comm::connect_shm(*context.store, place, SteadyClock::now() + std::chrono::seconds(30));
  RANK_OK(setup);
  const char* staging = std::getenv("STAGING");
  auto group = comm::ShmGroup::create(std::move(setup).value(), staging != nullptr ? std::strtoul(staging, nullptr, 10) : 512 * 1024);
  RANK_OK(group);
  comm::QueuedCommunicator c(comm::make_shm_transport(std::move(group).value()), {});
  auto memory = c.allocate(to);
  RANK_OK(memory);
  std::vector<float> foreign(to / 4), other(to / 4);
  for (std::size_t bytes = from; bytes <= to; bytes *= 4) {
    float* data = name == "owned" ? reinterpret_cast<float*>(*memory) : foreign.data();
    std::vector<double> times;
    for (int i = -3; i < rounds; ++i) {
      RANK_OK(c.barrier());
      const TimePoint before = SteadyClock::now();
      if (name == "copy") {
        std::memcpy(other.data(), data, bytes);
        asm volatile("" : : "r"(other.data()) : "memory");
        if (bytes < 65536) {  // too short for one clock reading
          for (int k = 0; k < 99; ++k) {
            std::memcpy(other.data(), data, bytes);
            asm volatile("" : : "r"(other.data()) : "memory");
          }
        }
      } else if (bytes < 65536) {
        for (int k = 0; k < 100; ++k) RANK_OK(c.all_reduce(comm::Block{data, bytes / 4, comm::DType::f32}, comm::Reduce::sum).wait());
      } else {
        RANK_OK(c.all_reduce(comm::Block{data, bytes / 4, comm::DType::f32}, comm::Reduce::sum).wait());
      }
      double us = std::chrono::duration<double, std::micro>(SteadyClock::now() - before).count();
      if (bytes < 65536) us /= 100;
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
  if (argc != 6) {
    std::fprintf(stderr, "usage: collective_bench copy|owned|foreign RANKS FROM_BYTES TO_BYTES ROUNDS\n");
    return 2;
  }
  const std::string name = argv[1];
  const auto outcomes = testing::run_ranks(
      std::atoi(argv[2]),
      [&](RankContext& context) {
        return measure(context, name, std::strtoul(argv[3], nullptr, 10), std::strtoul(argv[4], nullptr, 10), std::atoi(argv[5]));
      },
      std::chrono::seconds(300));
  const std::string wrong = testing::problems(outcomes);
  if (!wrong.empty()) std::fprintf(stderr, "%s", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}
