#include "launcher/embedded_services.h"

#include <utility>

#include "rendezvous/net/listeners.h"
#include "rendezvous/server/server.h"
#include "rendezvous/store/store_server.h"

namespace ddprun::launcher {

namespace asio = boost::asio;

namespace {

class EmbeddedStore final : public WorkerStore {
 public:
  EmbeddedStore(asio::io_context& io, Listener listener) : server_(io, std::move(listener)) {}

  std::uint16_t port() const override { return server_.port(); }
  std::size_t connections() const override { return server_.connections(); }
  void hold() override { server_.hold(); }
  void serve() override { server_.serve(); }

 private:
  rendezvous::StoreServer server_;
};

class EmbeddedHost final : public RendezvousHost {
 public:
  EmbeddedHost(asio::io_context& io, Listener listener, rendezvous::ServerOptions options)
      : server_(io, std::move(listener), std::move(options)) {
    server_.on_static_round([this] { server_.clear_store(); });
  }

  std::uint16_t port() const override { return server_.port(); }
  asio::awaitable<void> drain(RunId run_id, std::chrono::milliseconds grace) override {
    return server_.drain(std::move(run_id), grace);
  }

 private:
  rendezvous::RendezvousServer server_;
};

}  // namespace

Services make_embedded_services() {
  Services services;
  // Each rank holds one to three connections to its worker store; the usual soft limit of 1024 is met by 400 ranks.
  // spawn() gives the workers the old one.
  services.make_worker_store = [](asio::io_context& io, Listener listener) -> Result<std::unique_ptr<WorkerStore>> {
    rendezvous::raise_descriptor_limit();
    return std::unique_ptr<WorkerStore>(std::make_unique<EmbeddedStore>(io, std::move(listener)));
  };
  services.host_rendezvous = [](asio::io_context& io, Listener listener,
                                HostedFor hosted) -> Result<std::unique_ptr<RendezvousHost>> {
    rendezvous::raise_descriptor_limit();
    rendezvous::ServerOptions options;
    options.embedded = true;
    options.hosted_for = std::move(hosted.run_id);
    options.own_run_only = hosted.only;
    return std::unique_ptr<RendezvousHost>(std::make_unique<EmbeddedHost>(io, std::move(listener), std::move(options)));
  };
  return services;
}

}  // namespace ddprun::launcher
