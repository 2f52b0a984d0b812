#include "worker/ranks/engine_world.h"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "common/engine_meeting.h"
#include "common/log.h"
#include "common/lookup.h"
#include "common/store_client.h"
#include "worker/ranks/rank_layout.h"

namespace ddprun::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kMeet{60};  // srun and mpirun start all tasks within moments
constexpr seconds kTell{5};   // then a user who waits hears for what
constexpr milliseconds kPause{100};
constexpr char kWhose[] = "ddprun/world";
constexpr char kLayout[] = "ddprun/layout";

std::string task_key(std::int64_t rank) { return fmt::format("ddprun/task/{}", rank); }

std::string host_of(const EngineTask& task) {
  if (!task.host.empty()) return task.host;
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

Result<StoreClient> open_store(const Endpoint& endpoint, milliseconds patience) {
  StoreClientOptions options;
  options.endpoint = endpoint;
  options.connect_timeout = options.reply_timeout = patience;
  return StoreClient::connect(std::move(options));
}

struct Found {
  StoreClient client;
  Endpoint endpoint;  // numeric
};

// Several jobs may serve stores at the ports that ours may be at: the one that says our name is ours.
Result<Found> find_store(const EngineTask& task, const EngineMeeting& meeting, TimePoint deadline) {
  const TimePoint tell_at = SteadyClock::now() + kTell;
  bool told = false;
  std::string problem = "not tried yet";
  while (SteadyClock::now() < deadline) {
    for (const Endpoint& candidate : meeting.endpoints) {
      auto connection = tcp_connect_once(candidate, std::min(deadline, SteadyClock::now() + seconds(2)));
      if (!connection) {
        problem = connection.error().message();
        continue;
      }
      const auto remote = remote_endpoint(connection->get());
      const Endpoint endpoint = remote ? *remote : candidate;
      connection->reset();
      auto client = open_store(endpoint, seconds(2));
      auto whose = client ? client->try_get(kWhose) : Result<std::optional<std::string>>(client.error());
      if (whose && *whose && **whose == meeting.job) {
        auto lasting = open_store(endpoint, kMeet);
        if (lasting) return Found{std::move(*lasting), endpoint};
        problem = lasting.error().message();
      } else {
        problem = whose ? "another job's store answers at " + endpoint.to_string() : whose.error().message();
      }
    }
    if (!std::exchange(told, SteadyClock::now() >= tell_at) && told) {
      log_info("one of {} tasks of {}, waiting for task 0: {}", task.size, engine_starter(task.engine), problem);
    }
    std::this_thread::sleep_for(kPause);
  }
  return Error(Errc::timed_out,
               fmt::format("this is task {} of the {} that {} started, and task 0 serves no store within {} s: {}. "
                           "To train in each task by itself: --single",
                           task.rank, task.size, engine_starter(task.engine), kMeet.count(), problem));
}

Result<RankLayout> hand_out(const EngineTask& task, StoreClient& client, TimePoint deadline) {
  std::vector<std::string> keys;
  for (std::int64_t rank = 0; rank < task.size; ++rank) keys.push_back(task_key(rank));
  const std::string what = fmt::format("the other tasks of {}", engine_starter(task.engine));
  auto came = client.wait_for_keys(keys, deadline, what);
  if (!came) return std::move(came).error();
  auto texts = client.multi_get(keys, deadline);
  if (!texts) return std::move(texts).error();
  std::vector<TaskPlace> places;
  for (const auto& text : *texts) {
    auto place = parse_task_place(text);
    if (!place) return std::move(place).error();
    places.push_back(std::move(*place));
  }
  auto layout = lay_out(places);
  // The others must not wait for what will never come.
  auto told = client.set_confirmed(kLayout, layout ? to_text(*layout) : "error " + layout.error().message());
  if (layout && !told) return std::move(told).error();
  return layout;
}

Result<RankLayout> hear(const EngineTask& task, StoreClient& client, TimePoint deadline) {
  auto text = client.get(kLayout, deadline);
  if (!text) {
    return std::move(text).error().with_context(
        fmt::format("not all {} tasks of {} are here", task.size, engine_starter(task.engine)));
  }
  if (text->starts_with("error ")) return Error(Errc::invalid_argument, text->substr(6));
  return parse_rank_layout(*text);
}

WorkerEnv worker_env_of(const RankLayout& layout, const RankPlace& place) {
  WorkerEnv env;
  env.launched = true;
  env.rank = Rank(place.rank);
  env.local_rank = LocalRank(place.local_rank);
  env.world_size = env.role_world_size = static_cast<std::int64_t>(layout.tasks.size());
  env.local_world_size = place.local_world_size;
  env.group_rank = GroupRank(place.group_rank);
  env.group_world_size = layout.hosts;
  env.role_rank = place.rank;
  env.use_agent_store = true;
  return env;
}

// Several tasks of a host that each take all its CPUs spin for them: 50 times slower, measured. Where the engine has
// bound each task to CPUs of its own those are its share already.
std::int64_t share_of_cpus(std::int64_t tasks_here) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const std::int64_t mine = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const bool bound = mine * tasks_here <= ::sysconf(_SC_NPROCESSORS_ONLN);
  return std::max<std::int64_t>(1, bound ? mine : mine / tasks_here);
}

void divide_cpus(std::int64_t tasks_here) {
  const auto env = process_environment();
  if (env("OMP_NUM_THREADS")) return;
  std::int64_t threads = share_of_cpus(tasks_here);
  // Slurm binds only where it was set up to, but says what each task is meant to use.
  if (const auto slurm = env("SLURM_CPUS_PER_TASK"); slurm && in_slurm_step(env)) {
    std::int64_t cpus = 0;
    std::from_chars(slurm->data(), slurm->data() + slurm->size(), cpus);
    if (cpus > 0) threads = std::min(threads, cpus);
  }
  ::omp_set_num_threads(static_cast<int>(threads));
}

bool loopback_name(const std::string& host) { return host == "localhost" || is_loopback(host); }

}  // namespace

Result<World> join_engine_world(const EngineTask& task) {
  const TimePoint deadline = SteadyClock::now() + kMeet;
  auto meeting = meet(task, deadline);
  if (!meeting) return std::move(meeting).error().with_context(engine_starter(task.engine));
  World world;
  std::optional<Found> found;
  TaskPlace mine{host_of(task), task.local_rank, ""};
  if (meeting->listener) {
    const Endpoint here{"127.0.0.1", meeting->listener->port};
    auto served = OwnStore::serve(std::move(*meeting->listener));
    if (!served) return std::move(served).error();
    world.store = std::move(*served);
    auto client = open_store(here, kMeet);
    if (!client) return std::move(client).error().with_context("the store that this task serves");
    auto named = client->set_confirmed(kWhose, meeting->job);
    if (!named) return std::move(named).error();
    found.emplace(Found{std::move(*client), here});
  } else {
    auto reached = find_store(task, *meeting, deadline);
    if (!reached) return std::move(reached).error();
    found.emplace(std::move(*reached));
    mine.store_host = found->endpoint.host;
  }
  auto set = found->client.set_confirmed(task_key(task.rank), to_text(mine));
  if (!set) return std::move(set).error();
  const bool first = meeting->listener.has_value();
  auto layout = first ? hand_out(task, found->client, deadline) : hear(task, found->client, deadline);
  if (!layout) return std::move(layout).error();
  if (static_cast<std::int64_t>(layout->tasks.size()) != task.size) {
    return Error(Errc::malformed, fmt::format("task 0 knows {} tasks, this one {}", layout->tasks.size(), task.size));
  }
  const RankPlace& place = layout->tasks[static_cast<std::size_t>(task.rank)];
  world.env = worker_env_of(*layout, place);
  world.env.run_id = RunId(meeting->job);
  world.env.master = found->endpoint;
  // On task 0's host its name or loopback leads there, but other hosts know this one by another address.
  if (place.group_rank == layout->store_group && !layout->store_host.empty())
    world.env.master.host = layout->store_host;
  divide_cpus(place.local_world_size);
  if (place.rank == 0) {
    log_info("{} ranks on {} node{} by {}, without ddprun: no restarts", world.env.world_size, layout->hosts,
             layout->hosts == 1 ? "" : "s", engine_starter(task.engine));
  }
  return world;
}

Result<std::unique_ptr<OwnStore>> serve_given_world(const WorkerEnv& env) {
  std::unique_ptr<OwnStore> nothing;
  if (!env.launched || env.rank.value != 0 || env.world_size < 2 || env.use_agent_store) return nothing;
  ListenOptions listen;
  listen.port = env.master.port;
  if (loopback_name(env.master.host)) listen.scope = ListenScope::loopback;
  if (env.master.host == "::1") listen.address = "::1";
  auto bound = tcp_listen(listen);
  if (!bound) {
    log_debug("no store of its own: {}", bound.error().message());
    return nothing;
  }
  return OwnStore::serve(std::move(*bound));
}

}  // namespace ddprun::trainer
