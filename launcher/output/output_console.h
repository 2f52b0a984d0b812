#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/shared_out.h"
#include "launcher/output/line_mixer.h"

namespace ddprun::launcher {

// Standard output or standard error of ours, as the hub's thread writes to it. Never blocks that thread where the
// kernel lets us avoid it (SharedOut).
struct Console {
  static constexpr std::size_t kBytes = 1024 * 1024;  // what waits; more makes streams lag or pause

  explicit Console(int descriptor);

  SharedOut out;
  LineMixer mixer;
  bool closed = false;  // the reader is gone
  bool stuck = false;   // given up for now: it took too little when all else was done
  bool torn = false;    // and in the middle of a line
  int broken = 0;       // errno of another reason, not said yet
  bool armed = false;   // epoll waits for room
  std::string queue;
  std::size_t written = 0;  // of queue
  TimePoint last_progress;
  std::optional<TimePoint> waited_for_since;  // all that writes to it has ended
  std::uint64_t lost_bytes = 0;

  std::size_t waiting() const { return queue.size() - written; }
  bool full() const { return waiting() >= kBytes; }
  bool takes() const { return !closed && !stuck; }

  // Writes what can be written without blocking.
  void flush(TimePoint now);
  // Drops what waits; the number of its bytes. Nothing is taken until resume().
  std::uint64_t give_up();
  // It takes bytes again: how many were lost meanwhile.
  std::uint64_t resume();
};

}  // namespace ddprun::launcher
