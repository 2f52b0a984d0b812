#include "launcher/serve_store.h"

#include <signal.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/exit_code.h"
#include "common/log.h"
#include "common/standard_fds.h"
#include "common/tcp.h"
#include "launcher/embedded_services.h"

namespace ddprun::launcher {
namespace {

namespace asio = boost::asio;

std::optional<int> descriptor(std::string_view text) {
  int number = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

int serve_store(int argc, char** argv) {
  const auto listener = argc == 3 ? descriptor(argv[1]) : std::nullopt;
  const auto life = argc == 3 ? descriptor(argv[2]) : std::nullopt;
  const auto local = listener ? local_endpoint(*listener) : std::nullopt;
  if (!local || !life) {
    say("ddprun-store: a trainer that no launcher started runs this: ddprun-store LISTENER LIFE (descriptors)");
    return exit_code::kUsage;
  }
  log_init("ddprun-store", LogLevel::warning);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE}) ::signal(number, SIG_IGN);
  asio::io_context io(1);
  Listener bound{UniqueFd(*listener), local->port};
  auto store = make_embedded_services().make_worker_store(io, std::move(bound));
  if (!store) {
    log_error("{}", store.error().message());
    return exit_code::kFailure;
  }
  asio::posix::stream_descriptor owner(io, *life);
  std::array<char, 1> nothing{};
  // Nothing is ever written there.
  owner.async_read_some(asio::buffer(nothing), [&io](const boost::system::error_code&, std::size_t) { io.stop(); });
  io.run();
  return exit_code::kOk;
}

}  // namespace ddprun::launcher
