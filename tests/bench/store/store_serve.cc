// A bare store server for the bench and for interop tests: prints "port N", serves until stdin ends.
#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdio>
#include <cstdlib>

#include "common/log.h"
#include "common/tcp.h"
#include "rendezvous/net/listeners.h"
#include "rendezvous/store/store_server.h"

int main(int argc, char** argv) {
  using namespace ddprun;
  log_init("store_serve", LogLevel::info);
  rendezvous::raise_descriptor_limit();
  ListenOptions options;
  options.scope = ListenScope::any;
  if (argc > 1) options.port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  auto listener = tcp_listen(options);
  if (!listener) {
    std::fprintf(stderr, "store_serve: %s\n", listener.error().message().c_str());
    return 1;
  }
  boost::asio::io_context context(1);
  rendezvous::StoreServer server(context, std::move(*listener));
  std::printf("port %u\n", static_cast<unsigned>(server.port()));
  std::fflush(stdout);
  boost::asio::posix::stream_descriptor input(context, ::dup(0));
  input.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [&context](const boost::system::error_code&) { context.stop(); });
  context.run();
  return 0;
}
