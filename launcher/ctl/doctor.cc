#include "launcher/ctl/doctor.h"

#include <fmt/format.h>

#include <chrono>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/options.h"
#include "common/printable.h"
#include "common/standard_fds.h"
#include "common/tcp.h"
#include "launcher/options/preflight.h"

namespace ddprun::launcher {
namespace {

Finding endpoint_finding(const Endpoint& endpoint) {
  Finding finding;
  finding.subject = "rendezvous " + endpoint.to_string();
  auto connected = tcp_connect_once(endpoint, SteadyClock::now() + std::chrono::seconds(2));
  if (connected) {
    const bool here = is_loopback(endpoint.host);
    const auto holder = here ? port_holder(endpoint.port) : std::nullopt;
    finding.text = holder ? "served by " + *holder : std::string("somebody serves it");
  } else if (connected.error().code() == Errc::refused) {
    finding.text = "nobody serves it now (the first node of a job will, if this is its address)";
  } else {
    finding.level = Finding::Level::warning;
    finding.text = connected.error().message();
  }
  return finding;
}

}  // namespace

int ctl_doctor(const Endpoint& endpoint, std::span<const std::string> arguments) {
  OptionSpec log_dir = make_option("log-dir", OptionKind::text, "", "DIR",
                                   "can logs be written there, and is there room (nothing is left behind)");
  const OptionTable table("ddpctl doctor", "ddpctl doctor [--log-dir DIR]", {log_dir}, RestPolicy::none);
  auto parsed = table.parse(arguments, process_environment());
  if (!parsed) {
    say("ddpctl: " + printable(parsed.error().message()));
    return exit_code::kUsage;
  }
  if (parsed->flag("help")) {
    print_output(table.help());
    return exit_code::kOk;
  }
  auto findings = doctor(parsed->text("log-dir"));
  findings.push_back(endpoint_finding(endpoint));
  int code = exit_code::kOk;  // warnings included: a job would start
  for (const auto& finding : findings) {
    const bool error = finding.level == Finding::Level::error, warning = finding.level == Finding::Level::warning;
    print_output(fmt::format("{:<8} {}: {}\n",
                             error     ? "error"
                             : warning ? "warning"
                                       : "ok",
                             printable(finding.subject), printable(finding.text)));
    if (error) code = exit_code::kPermanent;
  }
  return code;
}

}  // namespace ddprun::launcher
