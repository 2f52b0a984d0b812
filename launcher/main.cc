#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/engine_meeting.h"
#include "common/exit_code.h"
#include "common/guarded_main.h"
#include "common/inherited_state.h"
#include "common/log.h"
#include "common/options.h"
#include "common/standard_fds.h"
#include "launcher/embedded_services.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/hosts/hosts.h"
#include "launcher/job/launch.h"
#include "launcher/options/cpu_budget.h"
#include "launcher/options/device.h"
#include "launcher/options/engine_options.h"
#include "launcher/options/options.h"
#include "launcher/serve_store.h"

// ddprun, and by another name ddprun-launch: options in, exit code out. The job itself is in launch.cc.
namespace ddprun::launcher {
namespace {

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string own_folder() {
  std::array<char, 4096> path{};
  const auto size = ::readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0 || size == static_cast<ssize_t>(path.size())) return "";
  const std::string_view whole(path.data(), static_cast<std::size_t>(size));
  return std::string(whole.substr(0, whole.rfind('/')));
}

// Workers start where we do, but the words that name it should stay true elsewhere.
std::string absolute_folder(std::string_view folder) {
  std::error_code failure;
  const auto path = std::filesystem::absolute(folder, failure).lexically_normal();
  return failure ? "" : path.string();
}

HostFacts host_facts() {
  HostFacts facts;
  facts.gpu_count = []() -> Result<std::int64_t> {
    auto gpus = query_gpus();
    if (!gpus) return std::move(gpus).error();
    const auto visible = process_environment()("CUDA_VISIBLE_DEVICES");
    const auto count = static_cast<std::int64_t>(visible_gpus(*gpus, visible).size());
    if (count == 0 && visible && !gpus->empty()) {
      return Error(Errc::not_found,
                   fmt::format("CUDA_VISIBLE_DEVICES='{}' hides all {} of this host", *visible, gpus->size()));
    }
    return count;
  };
  facts.cpu_count = [] { return cpu_budget().usable(); };
  for (const char* const* entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    facts.variables.emplace_back(variable.substr(0, variable.find('=')));
  }
  return facts;
}

// "unknown option '-np' (see --help)" -> the same and what to write here.
Error with_hint(Error error) {
  constexpr std::string_view kStart = "unknown option '";
  const std::string& message = error.message();
  if (!message.starts_with(kStart)) return error;
  const auto end = message.find('\'', kStart.size());
  const auto hint = foreign_option_hint(message.substr(kStart.size(), end - kStart.size()));
  return hint.empty() ? error : Error(error.code(), message + ": " + hint);
}

int usage_error(const std::string& program, const Error& error) {
  say(fmt::format("{}: {}", program, usage_sentence(error.message())));
  return exit_code::kUsage;
}

// Bad words are bad words; that the nodes do not meet is a rendezvous that timed out.
int engine_error(const std::string& program, const Error& error) {
  const int code = usage_error(program, error);
  const bool words = error.code() == Errc::invalid_argument || error.code() == Errc::malformed;
  return words ? code : exit_code::kUnavailable;
}

// What came with our start and shapes the job, in words.
void take_over(const InheritedState& state, const InheritedSignals& inherited, LaunchOptions& options) {
  if (state.no_working_directory) {
    options.warnings.emplace_back(
        "the working directory was removed: no relative name is found, and the workers start there too; cd to one that "
        "exists");
  }
  const auto handles = [&options](int number) {
    const auto& handled = options.supervision.signals_to_handle;
    return std::find(handled.begin(), handled.end(), number) != handled.end();
  };
  if (inherited.ignored(SIGTERM) && handles(SIGTERM)) {
    options.warnings.emplace_back(
        "SIGTERM was ignored when this started (a trap '' TERM of a script?): it ends neither the job nor its workers; "
        "SIGINT and ddpctl stop do");
  }
  if (state.alarm.count() == 0 || inherited.ignored(SIGALRM)) return;
  if (!handles(SIGALRM)) options.supervision.signals_to_handle.push_back(SIGALRM);
  options.warnings.push_back(fmt::format(
      "an alarm that was set before our start rings in {:.1f} s: SIGALRM ends the job then, as SIGTERM would",
      static_cast<double>(state.alarm.count()) / 1000));
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// What srun, mpirun or mpiexec know and nobody has given. Where one of those started us the nodes meet here, so that
// the first one has its port before the others ask for it.
struct FromEngine {
  bool used = false;
  bool hosts = false;
  std::string note;
};
Result<FromEngine> take_over_engine(ParsedOptions& parsed, const EnvLookup& env, const HostFacts& host,
                                    LaunchContext& context) {
  constexpr std::chrono::seconds kMeet{120};  // srun and mpirun start all tasks within moments
  auto task = choose_engine(parsed, env, host_name());
  if (!task) return std::move(task).error();
  FromEngine out;
  if (!*task) {
    take_from_kubernetes(parsed, env);
    return out;
  }
  EngineRendezvous rendezvous{std::nullopt, (*task)->job};
  if (needs_endpoint(parsed)) {
    auto met = meet(**task, SteadyClock::now() + kMeet);
    if (!met) return std::move(met).error().with_context(engine_starter((*task)->engine));
    rendezvous.endpoint = met->endpoints.front();
    rendezvous.run_id = met->job;
    out.used = true;
    out.hosts = met->listener.has_value();
    if (met->listener) {
      context.services.bound = std::make_shared<Listener>(std::move(*met->listener));
    } else {
      context.endpoint_ports = static_cast<std::uint16_t>(met->endpoints.size());
    }
    context.serve_own_run_only = true;
  }
  const auto gpus = parsed.given("nproc-per-node") ? Result<std::int64_t>(0) : host.gpu_count();
  out.note = take_from_engine(parsed, **task, rendezvous, gpus ? *gpus : 0);
  return out;
}

int run(int argc, char** argv) {
  if (argc > 0 && base_name(argv[0]) == "ddprun-store") return serve_store(argc, argv);
  LaunchContext context;  // takes the signals' state first of all, for the workers
  const InheritedState inherited = settle_inherited_state();

  const std::string_view called = argc > 0 ? argv[0] : "ddprun";
  const bool legacy = base_name(called) == "ddprun-launch";
  const Flavour flavour = legacy ? Flavour::launch : Flavour::run;
  context.program_name = legacy ? "ddprun-launch" : "ddprun";
  context.own_folder = own_folder();
  if (const auto slash = called.rfind('/'); slash != std::string_view::npos) {
    context.called_folder = absolute_folder(called.substr(0, slash));
  }

  const HostsContext hosts{context.own_folder + "/ddprun", std::string(called), context.inherited};
  if (is_node_call(argc, argv)) return serve_as_node(hosts);
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const auto& table = option_table(flavour);
  const auto environment = process_environment();
  auto parsed = table.parse(arguments, environment);
  if (!parsed) return usage_error(context.program_name, with_hint(std::move(parsed).error()));
  const auto show = [&context](const std::string& text) {
    print_output(text);
    return exit_code_after_output(context.program_name.c_str(), exit_code::kOk);
  };
  if (parsed->flag("help")) return show(table.help());
  if (parsed->flag("help-all")) return show(table.help_all());
  if (parsed->flag("version")) return show(version_text(context.program_name));
  if (parsed->flag("help-markdown")) return show(table.markdown());
  if (parsed->given("print-completion")) {
    return show(completion_script(flavour, parsed->text("print-completion")));
  }
  if (has_host_list(*parsed)) {
    log_init(context.program_name, from_word<LogLevel>(parsed->text("log-level")).value_or(LogLevel::info));
    return run_on_hosts(table, *parsed, flavour, hosts);
  }
  const HostFacts host = host_facts();
  context.services = make_embedded_services();
  auto engine = take_over_engine(*parsed, environment, host, context);
  if (!engine) return engine_error(context.program_name, engine.error());
  auto options = make_launch_options(*parsed, flavour, environment, host);
  if (!options) return usage_error(context.program_name, options.error());
  if (!engine->note.empty()) options->notes.push_back(engine->note);
  if (engine->used) options->rdzv.conf.is_host = engine->hosts;
  log_init(context.program_name, options->logs.level);
  take_over(inherited, context.inherited, *options);
  return launch(std::move(*options), std::move(context));
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  return ddprun::guarded_main("ddprun", [argc, argv] { return ddprun::launcher::run(argc, argv); });
}
