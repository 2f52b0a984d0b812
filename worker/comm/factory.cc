#include "worker/comm/factory.h"

#include <fmt/format.h>
#include <sched.h>

#include <utility>

#include "common/flight_recorder.h"
#include "worker/comm/key_value.h"
#include "worker/comm/queued_communicator.h"
#include "worker/comm/self_transport.h"
#include "worker/comm/shm_transport.h"

namespace ddprun::comm {
namespace {

constexpr std::size_t kStagingBytes = 512 * 1024;

bool wants_progress_thread(const WorkerEnv& env, Progress progress) {
  if (progress != Progress::automatic) return progress == Progress::thread;
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cpus = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  // A core of its own for each rank's compute and for its collectives; else overlapping only makes both slower.
  return env.world_size > 1 && cpus >= 2 * env.local_world_size;
}

Result<std::unique_ptr<Transport>> connect(const WorkerEnv& env, const CommOptions& options) {
  if (env.world_size == 1) return make_self_transport();
  const TimePoint deadline = SteadyClock::now() + options.connect_timeout;
  auto store = connect_store(env.master, deadline);
  if (!store) return store.error().with_context("cannot reach the worker store (MASTER_ADDR, MASTER_PORT)");
  const std::string suffix = options.name.empty() ? "" : "/" + options.name;
  ShmPlace place;
  place.key = fmt::format("/ddprun/shm/{}/{}{}", env.restart_count, env.group_rank.value, suffix);
  place.rank = static_cast<int>(env.rank.value);
  place.local_rank = static_cast<int>(env.local_rank.value);
  place.local_size = static_cast<int>(env.local_world_size);
  auto setup = connect_shm(**store, place, deadline);
  if (!setup) return setup.error();
  auto group = ShmGroup::create(std::move(setup).value(), kStagingBytes);
  if (!group) return group.error();
  return make_shm_transport(std::move(group).value());
}

}  // namespace

Result<Backend> parse_backend(std::string_view text) {
  if (text == "auto") return Backend::automatic;
  if (text == "nccl") return Backend::nccl;
  if (text == "cpu") return Backend::cpu;
  return Error(Errc::invalid_argument, fmt::format("backend \"{}\" is not known: auto, nccl or cpu", text));
}

Result<std::unique_ptr<Communicator>> make_communicator(const WorkerEnv& env, const CommOptions& options) {
  if (options.backend == Backend::nccl) {
    return Error(Errc::invalid_argument, "backend nccl: this build of ddprun has no CUDA backend; use backend cpu");
  }
  if (env.world_size != env.local_world_size) {
    return Error(Errc::invalid_argument, fmt::format("{} ranks on this host, {} in all: this build connects the ranks "
                                                     "of one host only",
                                                     env.local_world_size, env.world_size));
  }
  auto transport = connect(env, options);
  if (!transport) return transport.error();
  auto recorder = FlightWriter::attach(env.recorder_fd, static_cast<int>(env.rank.value),
                                       static_cast<int>(env.world_size), static_cast<int>(env.restart_count));
  if (!recorder) return recorder.error();
  QueuedCommunicator::Options queue;
  queue.timeout = options.timeout;
  queue.progress_thread = wants_progress_thread(env, options.progress);
  queue.recorder = std::move(recorder).value();
  return std::unique_ptr<Communicator>(
      std::make_unique<QueuedCommunicator>(std::move(transport).value(), std::move(queue)));
}

}  // namespace ddprun::comm
