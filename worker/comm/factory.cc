#include "worker/comm/factory.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/flight_recorder.h"
#include "common/log.h"
#include "common/tcp.h"
#include "worker/comm/hierarchical_transport.h"
#include "worker/comm/key_value.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/nccl_env.h"
#include "worker/comm/queued_communicator.h"
#include "worker/comm/roll_call.h"
#include "worker/comm/self_transport.h"
#include "worker/comm/shm_transport.h"
#include "worker/comm/tcp_transport.h"
#include "worker/device/backend.h"

namespace ddprun::comm {
namespace {

constexpr std::size_t kStagingBytes = 512 * 1024;

bool wants_progress_thread(const WorkerEnv& env, Progress progress) {
  if (progress != Progress::automatic) return progress == Progress::thread;
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cpus = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  // A core of its own for each rank's compute and for its collectives; else overlapping only makes both slower.
  return env.slice.world_size > 1 && cpus >= 2 * env.local_world_size;
}

std::string key(const WorkerEnv& env, const CommOptions& options, std::string_view what) {
  const std::string suffix = options.name.empty() ? "" : "/" + options.name;
  return fmt::format("/ddprun/{}/{}{}", what, env.slice.restart_count, suffix);
}

Result<std::unique_ptr<ShmGroup>> connect_host(const WorkerEnv& env, const CommOptions& options, KeyValue& store,
                                               TimePoint deadline) {
  ShmPlace place;
  place.key = fmt::format("{}/{}", key(env, options, "shm"), env.slice.group_rank.value);
  place.rank = static_cast<int>(env.rank.value);
  place.local_rank = static_cast<int>(env.local_rank.value);
  place.local_size = static_cast<int>(env.local_world_size);
  auto setup = connect_shm(store, place, deadline);
  if (!setup) return setup.error();
  return ShmGroup::create(std::move(setup).value(), kStagingBytes);
}

// Every host's first rank and number of ranks, through the store: "first size".
Result<HostMap> exchange_hosts(const WorkerEnv& env, const CommOptions& options, KeyValue& store, TimePoint deadline) {
  HostMap hosts;
  hosts.host = static_cast<int>(env.slice.group_rank.value);
  const auto key_of = [&](std::int64_t host) { return fmt::format("{}/{}", key(env, options, "hosts"), host); };
  const std::int64_t first = env.rank.value - env.local_rank.value;
  if (env.local_rank.value == 0) {
    Result<void> set = store.set(key_of(env.slice.group_rank.value), fmt::format("{} {}", first, env.local_world_size));
    if (!set) return set.error().with_context("cannot publish this host");
  }
  std::int64_t expected = 0;
  for (std::int64_t h = 0; h < env.slice.group_world_size; ++h) {
    auto value = store.get(key_of(h), deadline);
    if (!value) {
      return value.error().with_context(fmt::format("rank {} waits for the first rank of node {}", env.rank.value, h));
    }
    int first_rank = -1, size = 0;
    if (std::sscanf(value->c_str(), "%d %d", &first_rank, &size) != 2 || first_rank != expected || size < 1) {
      return Error(
          Errc::invalid_argument,
          fmt::format("ranks of nodes do not follow each other: node {} says \"{}\" (first rank, ranks), rank {} "
                      "is expected first",
                      h, *value, expected));
    }
    hosts.first_rank.push_back(first_rank);
    hosts.size.push_back(size);
    expected += size;
  }
  if (expected != env.slice.world_size) {
    return Error(Errc::invalid_argument,
                 fmt::format("the nodes have {} ranks together, but WORLD_SIZE is {}", expected, env.slice.world_size));
  }
  return hosts;
}

Result<std::unique_ptr<TcpRing>> connect_ring(const WorkerEnv& env, const CommOptions& options, KeyValue& store,
                                              const HostMap& hosts, TimePoint deadline) {
  RingPlace place;
  place.key = fmt::format("{}/{}", key(env, options, "tcp"), env.local_rank.value);
  place.index = hosts.host;
  place.ranks = hosts.ring(static_cast<int>(env.local_rank.value));
  place.connections = options.tcp_connections;
  place.address = options.address;
  if (place.address.empty()) {
    auto address = local_address_towards(env.slice.master);
    if (!address) {
      return Error(Errc::not_found,
                   fmt::format("no own address on the way to MASTER_ADDR {}", env.slice.master.to_string()));
    }
    place.address = *address;
  }
  return TcpRing::connect(store, place, deadline);
}

Result<std::unique_ptr<Transport>> connect(const WorkerEnv& env, const CommOptions& options, KeyValue* store,
                                           TimePoint deadline) {
  if (env.slice.world_size == 1) return make_self_transport();
  if (env.slice.group_world_size == 1 || env.slice.world_size == env.local_world_size) {
    auto group = connect_host(env, options, *store, deadline);
    if (!group) return group.error();
    return make_shm_transport(std::move(group).value());
  }
  auto hosts = exchange_hosts(env, options, *store, deadline);
  if (!hosts) return hosts.error();
  const bool alone_everywhere = std::all_of(hosts->size.begin(), hosts->size.end(), [](int n) { return n == 1; });
  std::unique_ptr<TcpRing> ring;
  if (env.local_rank.value < hosts->rings()) {
    auto made = connect_ring(env, options, *store, *hosts, deadline);
    if (!made) return made.error();
    ring = std::move(made).value();
  }
  if (alone_everywhere) return make_tcp_transport(std::move(ring));
  auto group = connect_host(env, options, *store, deadline);
  if (!group) return group.error();
  return make_hierarchical_transport(std::move(group).value(), std::move(ring), std::move(hosts).value(), deadline);
}

}  // namespace

Result<Backend> parse_backend(std::string_view text) {
  if (text == "auto") return Backend::automatic;
  if (text == "nccl") return Backend::nccl;
  if (text == "cpu") return Backend::cpu;
  return Error(Errc::invalid_argument, fmt::format("backend \"{}\" is not known: auto, nccl or cpu", text));
}

// Without loading CUDA where there is no driver.
Result<cuda::DeviceBackend*> find_gpu(Backend wanted) {
  if (wanted == Backend::cpu) return nullptr;
  const bool must = wanted == Backend::nccl;
  if (!must && ::access("/dev/nvidiactl", F_OK) != 0) return nullptr;
  auto backend = cuda::load_backend();
  if (!backend) {
    if (must) return backend.error().with_context("backend nccl");
    return nullptr;
  }
  auto count = (*backend)->device_count();
  if (count && *count > 0) return *backend;
  if (!must) return nullptr;
  if (!count) return count.error().with_context("backend nccl");
  return Error(Errc::not_found, "backend nccl: this host has no GPU; use backend cpu");
}

namespace {

// Ranks decide one by one whether they have a GPU: a driver that is missing on one host must not end in a wait.
Result<void> agree_on_backend(Communicator& host, bool use_nccl, TimePoint deadline) {
  std::int32_t mine = use_nccl ? 1 : 0;
  std::vector<std::int32_t> all(static_cast<std::size_t>(host.world_size()));
  Result<void> ok =
      host.all_gather(Block{&mine, 1, DType::i32}, Block{all.data(), all.size(), DType::i32}).wait_until(deadline);
  if (!ok) return ok;
  const auto other = std::find_if(all.begin(), all.end(), [&all](std::int32_t v) { return v != all.front(); });
  if (other == all.end()) return {};
  const auto gpu = std::find(all.begin(), all.end(), 1), cpu = std::find(all.begin(), all.end(), 0);
  return Error(Errc::invalid_argument,
               fmt::format("ranks disagree on the backend: rank {} has a GPU, rank {} found none (driver, "
                           "libddprun_cuda.so or device); ddp.backend: cpu works everywhere, ddp.backend: nccl says "
                           "what is missing",
                           gpu - all.begin(), cpu - all.begin()));
}

Result<NcclUniqueId> unique_id(const WorkerEnv& env, const CommOptions& options, NcclApi& nccl, KeyValue* store,
                               Communicator& host, TimePoint deadline) {
  if (env.slice.world_size > 1) return exchange_unique_id(nccl, *store, key(env, options, "nccl"), host, deadline);
  NcclUniqueId id{};  // nobody to tell, and perhaps no store
  const int status = nccl.get_unique_id(&id);
  if (status != NcclApi::kSuccess) return nccl_error(nccl, nullptr, 0, "ncclGetUniqueId", status);
  return id;
}

// One NCCL communicator over all ranks of all hosts: it finds the fastest way inside a host and between them itself.
Result<std::unique_ptr<Communicator>> add_nccl(const WorkerEnv& env, const CommOptions& options,
                                               cuda::DeviceBackend& backend, KeyValue* store,
                                               std::shared_ptr<FlightWriter> recorder,
                                               std::unique_ptr<QueuedCommunicator> host, TimePoint deadline) {
  auto sane = check_nccl_environment(process_environment(), network_interfaces());
  if (!sane) {
    host->abort(sane.error().message());
    return sane.error();
  }
  auto device = backend.open(static_cast<int>(env.rank.value), static_cast<int>(env.local_rank.value));
  if (!device) {
    host->abort(device.error().message());  // the others would wait in NCCL's initialisation
    return device.error();
  }
  auto id = unique_id(env, options, backend.nccl(), store, *host, deadline);
  if (!id) return id.error();
  NcclSetup setup;
  setup.nccl = &backend.nccl();
  setup.device = &(*device)->api();
  setup.compute = (*device)->compute();
  setup.communication = (*device)->communication();
  setup.device_number = (*device)->device();
  setup.rank = static_cast<int>(env.rank.value);
  setup.world_size = static_cast<int>(env.slice.world_size);
  setup.timeout = options.timeout;
  setup.recorder = std::move(recorder);
  return make_nccl_communicator(setup, *id, std::move(host), deadline);
}

// A store that is not there is waited for, and the user told for what: soon, then every 10 s.
Result<std::unique_ptr<KeyValue>> reach_store(const WorkerEnv& env, const CommOptions& options) {
  const TimePoint deadline = SteadyClock::now() + options.connect_timeout;
  for (std::chrono::seconds patience{2};; patience = std::chrono::seconds(10)) {
    const TimePoint until = std::min(deadline, SteadyClock::now() + patience);
    auto store = connect_store(env.slice.master, until);
    if (store) return store;
    const Errc code = store.error().code();
    const bool may_come = code == Errc::refused || code == Errc::timed_out || code == Errc::peer_closed;
    if (!may_come || until == deadline) {
      return store.error().with_context(
          fmt::format("cannot reach the worker store (MASTER_ADDR, MASTER_PORT) within {} s",
                      std::chrono::ceil<std::chrono::seconds>(options.connect_timeout).count()));
    }
    log_warning("rank {} waits for the worker store (MASTER_ADDR, MASTER_PORT), {} s more: {}", env.rank.value,
                std::chrono::ceil<std::chrono::seconds>(deadline - SteadyClock::now()).count(),
                store.error().message());
  }
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_communicator(const WorkerEnv& env, const CommOptions& options) {
  auto gpu = find_gpu(options.backend);
  if (!gpu) return gpu.error();
  if (env.slice.world_size == 1) return make_communicator(env, options, nullptr, *gpu);
  auto store = reach_store(env, options);
  if (!store) return store.error();
  return make_communicator(env, options, store->get(), *gpu);
}

Result<std::unique_ptr<Communicator>> make_communicator(const WorkerEnv& env, const CommOptions& options,
                                                        KeyValue* store, cuda::DeviceBackend* gpu) {
  const TimePoint deadline = SteadyClock::now() + options.connect_timeout;
  // NCCL also for a world of one: gradient buckets lie in its device memory.
  const bool use_nccl = gpu != nullptr;
  std::unique_ptr<RollCall> roll;
  if (env.slice.world_size > 1) {
    roll = std::make_unique<RollCall>(*store, key(env, options, "here"), static_cast<int>(env.rank.value),
                                      static_cast<int>(env.slice.world_size));
    auto came = roll->come();
    if (!came) return came.error();
  }
  auto transport = connect(env, options, roll.get(), deadline);
  if (!transport) return roll ? roll->explain(transport.error(), options.connect_timeout) : transport.error();
  auto recorder =
      FlightWriter::attach(env.recorder_fd, static_cast<int>(env.rank.value), static_cast<int>(env.slice.world_size),
                           static_cast<int>(env.slice.restart_count));
  if (!recorder) return recorder.error();
  std::shared_ptr<FlightWriter> writer = std::move(recorder).value();
  QueuedCommunicator::Options queue;
  queue.timeout = options.timeout;
  queue.progress_thread = !use_nccl && wants_progress_thread(env, options.progress);
  if (!use_nccl) queue.recorder = writer;
  auto host = std::make_unique<QueuedCommunicator>(std::move(transport).value(), std::move(queue));
  if (env.slice.world_size > 1) {
    Result<void> same = agree_on_backend(*host, use_nccl, deadline);
    if (!same) return same.error();
    roll->leave();
  }
  if (!use_nccl) return std::unique_ptr<Communicator>(std::move(host));
  return add_nccl(env, options, *gpu, store, std::move(writer), std::move(host), deadline);
}

}  // namespace ddprun::comm
