#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/engine_task.h"
#include "common/exit_code.h"
#include "common/guarded_main.h"
#include "common/inherited_state.h"
#include "common/log.h"
#include "common/options.h"
#include "common/standard_fds.h"
#include "common/worker_env.h"
#include "worker/apply/commands.h"
#include "worker/config/config.h"
#include "worker/config/options.h"
#include "worker/ranks/engine_world.h"
#include "worker/ranks/lone_copy.h"
#include "worker/ranks/own_store.h"
#include "worker/ranks/run_error.h"
#include "worker/ranks/stop_signal.h"
#include "worker/run/preview.h"
#include "worker/run/train_loop.h"
#include "worker/tools/bench.h"
#include "worker/tools/init.h"
#include "worker/tools/plot.h"
#include "worker/tools/subcommand.h"
#include "worker/tools/tokenize.h"

namespace ddprun::trainer {
namespace {

int usage_error(const std::string& message) {
  say("trainer: " + usage_sentence(message));
  return exit_code::kUsage;
}

// Training goes on without a screen; of everything else the output is the result.
int printed(int code) { return exit_code_after_output("trainer", code); }

constexpr struct {
  const char* name;
  int (*run)(std::span<const std::string> arguments);
} kCommands[] = {{"init", init_main},         {"data", data_main},    {"eval", eval_main}, {"predict", predict_main},
                 {"generate", generate_main}, {"tokenize", tokenize}, {"plot", plot},      {"bench", comm::bench_main}};

int run_command(const std::string& name, std::span<const std::string> arguments) {
  std::vector<std::string> names;
  for (const auto& command : kCommands) {
    if (name == command.name) return printed(command.run(arguments));
    names.push_back(command.name);
  }
  const auto near = nearest_name(name, names);
  return usage_error(fmt::format("unknown command '{}'{} (commands: {}; training: --config FILE)", name,
                                 near ? ": did you mean '" + *near + "'?" : "", fmt::join(names, ", ")));
}

// Where no ddprun started us: alone, or one of several that know of each other by hand or by their engine.
Result<World> find_world(WorkerEnv given, bool single) {
  World world;
  world.env = std::move(given);
  if (world.env.launched) {
    auto store = serve_given_world(world.env);
    if (!store) return std::move(store).error();
    world.store = std::move(*store);
    return world;
  }
  if (single) return world;
  auto task = find_engine_task(process_environment(), std::nullopt);
  if (!task) return std::move(task).error();
  if (*task && (*task)->size > 1) return join_engine_world(**task);
  if (auto alone = check_lone_copy(process_environment()); !alone) return std::move(alone).error();
  return world;
}

int run(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && !arguments[0].empty() && arguments[0][0] != '-') {
    return run_command(arguments[0], std::span(arguments).subspan(1));
  }
  const OptionTable& table = option_table();
  auto options = table.parse(arguments, process_environment());
  if (!options) return usage_error(options.error().message());
  if (print_if_asked(table, *options)) return printed(exit_code::kOk);
  // Before any other thread is started: they must inherit the blocked signals.
  auto stop = StopSignal::create();
  if (!stop) return usage_error(stop.error().message());
  auto env = from_environment(process_environment());
  if (!env) return usage_error(env.error().message());
  std::unique_ptr<OwnStore> store;
  if (!options->flag("check")) {
    auto world = find_world(std::move(*env), options->flag("single"));
    if (!world) {
      const bool usage = world.error().code() == Errc::invalid_argument || world.error().code() == Errc::malformed;
      const int code = usage_error(world.error().message());
      return usage ? code : exit_code::kUnavailable;
    }
    *env = std::move(world->env);
    store = std::move(world->store);
  }
  auto config = config_from_options(*options);
  if (!config) {
    // Every rank reads the same file: one of each node says what is wrong with it.
    if (env->local_rank.value == 0) {
      write_error_file(env->error_file, config.error().message(), exit_code::kUsage);
      return usage_error(config.error().message());
    }
    // The end of the one that speaks brings us a SIGTERM.
    std::this_thread::sleep_for(kTimeForTheSpeaker);
    return exit_code::kUsage;
  }
  if (options->flag("check")) {
    if (env->rank.value != 0) return exit_code::kOk;  // all have read the same file
    const std::string& path = options->given("cfg") ? options->text("cfg") : options->text("config");
    std::printf("%s: good\n", path.c_str());
    for (const std::string& line : preview(*config, static_cast<int>(env->slice.world_size)))
      std::printf("%s\n", line.c_str());
    return printed(exit_code::kOk);
  }
  return train(*config, *env, **stop);
}

}  // namespace
}  // namespace ddprun::trainer

int main(int argc, char** argv) {
  ddprun::settle_inherited_state();
  ddprun::log_init("trainer", ddprun::LogLevel::info);
  return ddprun::guarded_main("trainer", [argc, argv] {
    return ddprun::trainer::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  });
}
