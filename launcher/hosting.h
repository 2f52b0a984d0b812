#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/rdzv_protocol.h"
#include "common/result.h"
#include "common/tcp.h"
#include "common/types.h"
#include "launcher/agent.h"
#include "launcher/services.h"

namespace ddprun::launcher {

// Who serves the rendezvous endpoint, on which addresses this node listens, and what MASTER_ADDR and MASTER_PORT are.
// One thread; lives as long as its agent.
class Hosting {
 public:
  Hosting(boost::asio::io_context& io, AgentOptions options, Services services);
  ~Hosting();
  Hosting(const Hosting&) = delete;
  Hosting& operator=(const Hosting&) = delete;

  // Once, before anybody connects: serves the endpoint where this node must, and with c10d where it can.
  // Errors: refused, invalid_argument, system (this node must serve and cannot), cancelled (see stop_looking).
  boost::asio::awaitable<Result<void>> prepare();
  // Nobody listens at the endpoint: whoever can bind it hosts it; names are not compared. Does nothing where this node
  // serves already or may not.
  boost::asio::awaitable<void> try_to_host();
  // Ends a look-up that prepare() or try_to_host() waits for.
  void stop_looking();

  bool hosting() const { return host_ != nullptr; }       // the rendezvous is in this process
  const Endpoint& endpoint() const { return endpoint_; }  // as others know it
  Endpoint client_endpoint() const;                       // as we reach it

  // The listener of the round's worker store, bound before Join so that its port is sure. 0: static, where the
  // endpoint's own port serves it. Errors: refused, system.
  Result<std::uint16_t> bind_store();
  // The round has begun: group rank 0 serves the store on that listener, the others let go of it.
  Result<void> serve_store(const rdzv::Assignment& assignment);
  // MASTER_ADDR and MASTER_PORT. `server_address`: numeric, of the rendezvous as our client reached it.
  Endpoint master(const rdzv::Assignment& assignment, const std::string& server_address) const;

  // Serves on until no agent of the job is connected, at most close_timeout and 10 s. Returns at once where nothing is
  // served here.
  boost::asio::awaitable<void> drain();
  void close();  // lets go of all listeners and connections

 private:
  bool is_static() const { return options_.backend == RendezvousBackend::static_ranks; }
  bool loopback_job() const;
  // `address` "": any.
  Result<void> host_on(const std::string& address, std::uint16_t port);

  boost::asio::io_context& io_;
  AgentOptions options_;
  Services services_;
  Endpoint endpoint_;
  std::optional<Endpoint> client_endpoint_;
  std::unique_ptr<RendezvousHost> host_;
  std::optional<Listener> listener_;
  std::unique_ptr<WorkerStore> store_;
};

}  // namespace ddprun::launcher
