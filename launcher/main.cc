#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "common/exit_code.h"
#include "common/guarded_main.h"
#include "common/log.h"
#include "common/options.h"
#include "common/printable.h"
#include "common/standard_fds.h"
#include "launcher/cpu_budget.h"
#include "launcher/device.h"
#include "launcher/embedded_services.h"
#include "launcher/launch.h"
#include "launcher/options.h"

// ddprun, and by another name ddprun-launch: options in, exit code out. The job itself is in launch.cc.
namespace ddprun::launcher {
namespace {

std::string own_folder() {
  std::array<char, 4096> path{};
  const auto size = ::readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0 || size == static_cast<ssize_t>(path.size())) return "";
  const std::string_view whole(path.data(), static_cast<std::size_t>(size));
  return std::string(whole.substr(0, whole.rfind('/')));
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
  facts.cpu_count = [] { return cpu_budget().affinity; };
  return facts;
}

LogLevel log_level(std::string_view name) {
  return name == "debug"     ? LogLevel::debug
         : name == "warning" ? LogLevel::warning
         : name == "error"   ? LogLevel::error
                             : LogLevel::info;
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
  say(fmt::format("{}: {}", program, printable(error.message())));
  return exit_code::kUsage;
}

int run(int argc, char** argv) {
  open_standard_fds();
  LaunchContext context;  // takes the signals' state first of all
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);  // a parent that ignores it would break every wait

  const std::string_view called = argc > 0 ? argv[0] : "ddprun";
  const bool legacy = called.substr(called.rfind('/') + 1) == "ddprun-launch";
  const Flavour flavour = legacy ? Flavour::launch : Flavour::run;
  context.program_name = legacy ? "ddprun-launch" : "ddprun";
  context.own_folder = own_folder();

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
  if (parsed->flag("version")) return show(version_text(context.program_name));
  if (parsed->flag("help-markdown")) return show(table.markdown());
  if (parsed->given("print-completion")) {
    return show(completion_script(flavour, parsed->text("print-completion")));
  }
  auto options = make_launch_options(*parsed, flavour, environment, host_facts());
  if (!options) return usage_error(context.program_name, options.error());
  log_init(context.program_name, log_level(options->log_level));
  context.services = make_embedded_services();
  return launch(std::move(*options), std::move(context));
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  return ddprun::guarded_main("ddprun", [argc, argv] { return ddprun::launcher::run(argc, argv); });
}
