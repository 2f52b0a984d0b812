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
  // Between two rounds on one port: hold() closes all connections, empties the store and lets new clients wait until
  // serve(), so that a worker of the next round that is early is not taken for one of the last.
  virtual void hold() = 0;
  virtual void serve() = 0;
};

// A rendezvous server inside this process (--standalone, or the endpoint is this host).
class RendezvousHost {
 public:
  virtual ~RendezvousHost() = default;
  virtual std::uint16_t port() const = 0;
  // Serves on until no agent of the job is connected (our own has closed before), at most for `grace`.
  virtual boost::asio::awaitable<void> drain(RunId run_id, std::chrono::milliseconds grace) = 0;
};

// Whose rendezvous an embedded one is.
struct HostedFor {
  RunId run_id;
  bool only = false;  // others are refused: they look elsewhere
};

struct Services {
  std::function<Result<std::unique_ptr<WorkerStore>>(boost::asio::io_context&, Listener)> make_worker_store;
  // With the static backend the rendezvous port serves the worker store too (first byte decides). It is emptied by the
  // host between the end of the old round's last worker and the new round's assignments.
  std::function<Result<std::unique_ptr<RendezvousHost>>(boost::asio::io_context&, Listener, HostedFor)> host_rendezvous;
  // Bound already, to be hosted on by the first that hosts: its port is known to other nodes. May be null.
  std::shared_ptr<Listener> bound;
};

}  // namespace ddprun::launcher
