// Training steps of one model on random data, as one rank of a job; rank 0 prints one JSON line. trainer_bench.py runs
// it beside the same model in PyTorch.
//   trainer_bench MODEL BATCH SECONDS [overlap=0|1] [checkpoint=0|1]
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "common/worker_env.h"
#include "worker/comm/factory.h"
#include "worker/ddp/reducer.h"
#include "worker/engine/plan.h"
#include "worker/kernels/kernels.h"
#include "worker/models/models.h"
#include "worker/optim/optimizer.h"

namespace {

using namespace ddprun;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Seconds from the start of this process (field 22 of /proc/self/stat) until now.
double process_age() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::size_t at = text.rfind(')') + 2;
  for (int field = 3; field < 22; ++field) at = text.find(' ', at) + 1;
  const double started = std::strtod(text.c_str() + at, nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ifstream uptime("/proc/uptime");
  double now = 0;
  uptime >> now;
  return now - started;
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

engine::ModelConfig preset(const std::string& name) {
  if (name == "mlp") return {.name = "mlp", .inputs = 784, .outputs = 10, .hidden = {512, 512}};
  if (name == "gpt2") {
    return {
        .name = "gpt2",
        .gpt2 = {.vocabulary = 65, .context = 256, .sequence_length = 256, .layers = 6, .heads = 6, .embedding = 384}};
  }
  if (name == "resnet18") return {.name = "resnet18", .outputs = 1000, .image_size = 224};
  if (name == "resnet18_32") {
    return {.name = "resnet18", .outputs = 10, .stem = engine::Stem::small, .image_size = 32};
  }
  std::fprintf(stderr, "trainer_bench: unknown model %s; known are mlp, gpt2, resnet18, resnet18_32\n", name.c_str());
  std::exit(2);
}

int run(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: trainer_bench MODEL BATCH SECONDS [overlap=0|1] [checkpoint=0|1]\n");
    return 2;
  }
  const std::string name = argv[1];
  const std::int64_t batch = std::atoll(argv[2]);
  const double budget = std::atof(argv[3]);
  bool overlap = true, checkpoint = false;
  for (int i = 4; i < argc; ++i) {
    if (std::string(argv[i]) == "overlap=0") overlap = false;
    if (std::string(argv[i]) == "checkpoint=1") checkpoint = true;
  }
  auto env = from_environment(process_environment()).value();
  comm::CommOptions comm_options;
  comm_options.backend = comm::Backend::cpu;
  auto communicator = comm::make_communicator(env, comm_options).value();
  auto kernels = engine::make_cpu_kernels().value();
  const engine::ModelConfig config = preset(name);
  engine::Model model = engine::build_model(config, {}, batch).value();
  auto store = engine::ParameterStore::create(model.graph, *kernels).value();
  engine::initialise(config, *store, 1);
  std::vector<ddp::ParameterInfo> infos;
  for (const engine::Parameter& p : store->parameters()) {
    infos.push_back({p.name, {p.shape.extents().begin(), p.shape.extents().end()}, comm::DType::f32, p.count()});
  }
  auto plan = engine::Plan::create(model.graph, *store, {.activation_checkpointing = checkpoint}).value();
  std::vector<ddp::ParamId> order;
  for (engine::ParamId p : plan->ready_order()) order.push_back(p.index);
  ddp::ReducerOptions reducer_options;
  reducer_options.overlap = overlap;
  auto reducer = ddp::Reducer::create(*communicator, infos, order, reducer_options).value();
  for (ddp::ParamId p : order) store->set_gradient({p}, reducer->gradient_bytes(p));
  optim::OptimizerConfig recipe{.kind = optim::OptimizerKind::adamw, .weight_decay = 0.01};
  if (name != "gpt2") recipe = {.kind = optim::OptimizerKind::sgd, .momentum = 0.9};
  auto optimizer = optim::Optimizer::create(recipe, *store).value();

  std::mt19937 random(static_cast<unsigned>(communicator->rank()));
  std::normal_distribution<float> normal;
  std::vector<float> input(static_cast<std::size_t>(model.graph.shape(model.input).count()));
  std::vector<std::int32_t> tokens(input.size()),
      target(static_cast<std::size_t>(model.graph.shape(model.target).count()));
  for (float& x : input) x = normal(random);
  const auto classes = static_cast<unsigned>(name == "gpt2" ? config.gpt2.vocabulary : config.outputs);
  for (auto& t : tokens) t = static_cast<std::int32_t>(random() % classes);
  for (auto& t : target) t = static_cast<std::int32_t>(random() % classes);

  const std::function<void(engine::ParamId)> on_ready = [&](engine::ParamId p) { reducer->mark_ready(p.index); };
  std::vector<double> times, waits, cpu;  // cpu: seconds of all threads, what a busy machine does not change
  double first = 0, loss = 0;
  const double ready = process_age(), ready_cpu = cpu_seconds();
  const auto start = Clock::now();
  for (std::int64_t step = 0;; ++step) {
    const auto begin = Clock::now();
    const double used = cpu_seconds();
    plan->load(model.input, name == "gpt2" ? static_cast<const void*>(tokens.data()) : input.data()).value();
    plan->load(model.target, target.data()).value();
    plan->forward();
    loss = plan->loss();
    reducer->begin(ddp::Sync::now);
    plan->backward({}, on_ready);
    const ddp::ReduceReport report = reducer->finish().value();
    optimizer->step(1e-3);
    times.push_back(seconds_since(begin));
    cpu.push_back(cpu_seconds() - used);
    waits.push_back(std::chrono::duration<double>(report.waited).count());
    if (step == 0) first = process_age();
    // Rank 0 decides when to stop; the others follow.
    std::int64_t stop = seconds_since(start) > budget && step >= 3 ? 1 : 0;
    communicator->broadcast({&stop, 1, comm::DType::i64}, 0).wait().value();
    if (stop != 0) break;
  }
  communicator->barrier().value();
  if (communicator->rank() != 0) return 0;
  times.erase(times.begin());
  waits.erase(waits.begin());
  cpu.erase(cpu.begin());
  std::sort(times.begin(), times.end());
  std::sort(cpu.begin(), cpu.end());
  std::sort(waits.begin(), waits.end());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double samples = static_cast<double>(batch) * communicator->world_size();
  std::printf(
      "{\"who\": \"ddprun\", \"model\": \"%s\", \"ranks\": %d, \"steps\": %zu, \"best_ms\": %.3f, \"median_ms\": %.3f, "
      "\"samples_per_s_best\": %.1f, \"samples_per_s_median\": %.1f, \"cpu_ms\": %.3f, \"wait_ms\": %.3f, "
      "\"ready_s\": %.3f, \"ready_cpu_s\": %.3f, \"first_step_s\": %.3f, "
      "\"peak_mb\": %.1f, \"activation_mb\": %.1f, \"unplanned_mb\": %.1f, \"loss\": %.6f, \"kernels\": \"%s\"}\n",
      name.c_str(), communicator->world_size(), times.size(), times.front() * 1e3, times[times.size() / 2] * 1e3,
      samples / times.front(), samples / times[times.size() / 2], cpu[cpu.size() / 2] * 1e3,
      waits[waits.size() / 2] * 1e3, ready, ready_cpu, first, static_cast<double>(usage.ru_maxrss) / 1024,
      static_cast<double>(plan->memory().activation_bytes) / 1048576,
      static_cast<double>(plan->memory().unplanned_bytes) / 1048576, loss, kernels->description().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv); }
