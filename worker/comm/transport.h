#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "common/result.h"
#include "worker/comm/operation.h"

namespace ddprun::comm {

// Carries one operation at a time, blocking. QueuedCommunicator puts order, handles, threads and the flight recorder
// around it.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description() const = 0;
  virtual bool crosses_hosts() const = 0;

  // Runs `op` to its end or to op.deadline(); `allocate` fills op.allocated. Errors: as Work::wait(). After an error
  // the transport is broken and has told the other ranks why.
  virtual Result<void> run(Operation& op) = 0;
  // Any thread; wakes run() here and on the other ranks. Only the first reason counts.
  virtual void abort(const std::string& reason) = 0;
  // Between operations: a verdict or a dead peer that is known by now.
  virtual std::optional<Error> news() = 0;
  // False in a child of fork(): the connections belong to the parent.
  virtual bool usable_here() const = 0;
};

}  // namespace ddprun::comm
