#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/async_lookup.h"
#include "common/rdzv_protocol.h"
#include "common/result.h"
#include "common/tcp.h"
#include "common/types.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/services.h"

namespace ddprun::launcher {

// Who serves the rendezvous endpoint, on which addresses this node listens, and what MASTER_ADDR and MASTER_PORT are.
//
// How far we can be reached follows from the number of nodes, not from how the endpoint is spelled: where there may be
// several, a node that serves "localhost" listens on all addresses, since the others know it by a name or an address.
// A job of one node on a loopback endpoint listens on loopback only. One thread; lives as long as its agent.
class Hosting {
 public:
  Hosting(boost::asio::io_context& io, AgentOptions options, Services services);
  ~Hosting();
  Hosting(const Hosting&) = delete;
  Hosting& operator=(const Hosting&) = delete;

  // Once, before anybody connects: serves the endpoint where this node must, and with c10d where it can.
  // Errors: invalid_argument (an option cannot be meant so: exit 2), refused, not_found, system (this node must serve
  // and cannot), cancelled (stop_looking).
  boost::asio::awaitable<Result<void>> prepare();
  // Nobody listens at the endpoint: whoever can bind it hosts it; names are not compared. Does nothing where this node
  // serves already or may not. A look-up may take 10 s: `still_wanted` is asked right before the bind whether this node
  // still looks for somebody who serves, and nothing is bound if it does not.
  boost::asio::awaitable<void> try_to_host(std::function<bool()> still_wanted);
  boost::asio::awaitable<void> try_to_host();  // wanted whatever comes
  // Ends for good the look-ups that prepare() and try_to_host() wait for.
  void stop_looking();

  bool hosting() const { return host_ != nullptr; }       // the rendezvous is in this process
  const Endpoint& endpoint() const { return endpoint_; }  // as others know it
  Endpoint client_endpoint() const;                       // as we reach it
  // What this node calls its own address at the rendezvous; "" = our side of the connection. After prepare().
  std::string own_address() const;
  // "" or "; ...": why nobody may come, for those who wait.
  std::string waiting_hint() const;

  // The listener of the round's worker store, bound before Join so that its port is sure. 0: static, where the
  // endpoint's own port serves it. Errors: refused, invalid_argument, system.
  Result<std::uint16_t> bind_store();
  // The round has begun: group rank 0 serves the store on that listener, the others let go of it. Where a worker is to
  // bind the port (serve_worker_store = false) group rank 0 keeps it until release_master_port().
  Result<void> serve_store(const rdzv::Assignment& assignment);
  // Right before the workers start, which may be a back-off after serve_store(): the port is theirs now. Does nothing
  // where the store is served here.
  void release_master_port();
  // MASTER_ADDR and MASTER_PORT. `server_address`: numeric, of the rendezvous as our client reached it.
  Endpoint master(const rdzv::Assignment& assignment, const std::string& server_address) const;

  // Serves on until no agent of the job is connected, at most close_timeout and 10 s. Returns at once where nothing is
  // served here.
  boost::asio::awaitable<void> drain();
  void close();  // lets go of all listeners and connections

 private:
  bool is_static() const { return options_.job.backend == RdzvBackend::static_ranks; }
  bool one_node() const { return options_.job.nnodes_max == 1; }
  // `address` "": any.
  Result<void> host_on(const std::string& address);
  Result<void> must_host(const std::string& why);
  boost::asio::awaitable<Result<void>> choose_store_address();
  boost::asio::awaitable<void> choose_master_name();
  boost::asio::awaitable<Result<Lookup::Addresses>> look_up(std::string host);

  boost::asio::io_context& io_;
  AgentOptions options_;
  Services services_;
  AsyncLookup lookup_;
  Endpoint endpoint_;
  std::optional<Endpoint> client_endpoint_;
  std::string hosted_on_;      // where the rendezvous listens, if it is here; "" = on all addresses
  std::string store_address_;  // where the worker store listens; "" = on all addresses
  std::string master_name_;    // static: what we serve under, as all nodes may use it
  std::unique_ptr<RendezvousHost> host_;
  std::optional<Listener> listener_;
  std::unique_ptr<WorkerStore> store_;
};

}  // namespace ddprun::launcher
