#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "common/tcp.h"
#include "common/types.h"

// What the launcher needs from the rendezvous library. launcher/main.cc alone knows who provides it, so that
// launcher/ and rendezvous/ never include each other.
namespace ddprun::launcher {

// The c10d store of one round, on a listener that was bound before Join.
class WorkerStore {
 public:
  virtual ~WorkerStore() = default;
  virtual std::uint16_t port() const = 0;
  virtual std::size_t connections() const = 0;  // c10d clients connected now
  virtual void clear() = 0;                     // closes all client connections and empties the store
};

// A rendezvous server inside this process (--standalone, or the endpoint is this host).
class RendezvousHost {
 public:
  virtual ~RendezvousHost() = default;
  virtual std::uint16_t port() const = 0;
  virtual std::size_t other_agents() const = 0;  // agents connected from other processes
  // Static backend: the c10d store on this same port is the worker store. It is emptied by the host itself, between the
  // end of the old round's last worker and the new round's assignments.
  virtual void serve_workers(bool on) = 0;
  // Serves on until `grace` has passed or no agent of another process is connected, then stops.
  virtual boost::asio::awaitable<void> drain(std::chrono::milliseconds grace) = 0;
};

struct Services {
  std::function<Result<std::unique_ptr<WorkerStore>>(boost::asio::io_context&, Listener)> make_worker_store;
  // With the static backend the rendezvous port serves the worker store too (first byte decides).
  std::function<Result<std::unique_ptr<RendezvousHost>>(boost::asio::io_context&, Listener)> host_rendezvous;
};

}  // namespace ddprun::launcher
