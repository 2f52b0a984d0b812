#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/flight_recorder.h"
#include "worker/comm/communicator.h"
#include "worker/comm/transport.h"

namespace ddprun::comm {

// A Communicator over a blocking Transport: keeps the order, hands out Work, and runs operations either in a progress
// thread or in the caller that waits. Checks arguments before anything is sent.
class QueuedCommunicator final : public Communicator {
 public:
  struct Options {
    std::chrono::milliseconds timeout{30'000};
    bool progress_thread = false;
    std::shared_ptr<FlightWriter> recorder;  // may be null
  };

  QueuedCommunicator(std::unique_ptr<Transport> transport, Options options);
  // With an exception on its way out, aborts the other ranks; else they learn that this rank returned.
  ~QueuedCommunicator() override;

  int rank() const override;
  int world_size() const override;
  std::string description() const override;
  bool crosses_hosts() const override;
  bool device_memory() const override { return false; }
  Work all_reduce(Block data, Reduce op) override;
  Work broadcast(Block data, int root) override;
  Work all_gather(Block mine, Block all) override;
  Work reduce_scatter(Block all, Block mine, Reduce op) override;
  Result<void> barrier() override;
  Result<std::byte*> allocate(std::size_t size_bytes) override;
  void abort(const std::string& reason) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  std::uint64_t sequence() const override;
  std::uint64_t dropped_handles() const override;
  std::uint64_t live_works() const override;

  // A failure that is known by now, without waiting: ours, another rank's verdict, a dead peer. Not while a collective
  // runs in another thread.
  std::optional<Error> news();

 private:
  struct Core;
  class Pending;

  Work start(OpKind kind, Block in, Block out, Reduce reduce, int root);

  std::shared_ptr<Core> core_;
  int exceptions_at_start_;
};

}  // namespace ddprun::comm
