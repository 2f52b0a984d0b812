#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/result.h"
#include "rendezvous/membership/known_world.h"
#include "rendezvous/server/state_file.h"

namespace ddprun::rendezvous {

// Keeps the state file up to date. The disk is waited for on a thread of its own, so that heartbeats are answered
// meanwhile; changes that come during a write go into the next one together. Else one thread, that of `io`.
class StateWriter : public std::enable_shared_from_this<StateWriter> {
 public:
  // What must be in the file now.
  using Snapshot = std::function<std::vector<KnownWorld>()>;

  // `on_settled`: more changes are settled than before; from the event loop.
  StateWriter(boost::asio::io_context& io, std::shared_ptr<const StateFile> file, Snapshot snapshot,
              std::function<void()> on_settled);

  // The snapshot is another one from now on. Returns the number of this change.
  std::uint64_t changed();
  // It is on the disk; or it cannot be brought there for now, or not within kPatience: jobs go on then, and it was
  // said.
  bool settled(std::uint64_t change) const { return stuck_ || change <= settled_; }
  // Tries again what failed. To be called about once a second.
  void retry();
  // What is not written yet has a second; then a write that is under way is left behind with its thread. After that
  // neither Snapshot nor on_settled is called.
  void close();

  static constexpr std::chrono::seconds kPatience{5};

 private:
  struct Shared;

  void write();
  void written(std::uint64_t change, const Result<void>& result);
  void watch();

  boost::asio::io_context& io_;
  std::shared_ptr<const StateFile> file_;
  Snapshot snapshot_;
  std::function<void()> on_settled_;
  boost::asio::steady_timer patience_;
  std::uint64_t wanted_ = 0, saved_ = 0, settled_ = 0;
  bool busy_ = false;
  bool stuck_ = false;  // the write under way takes too long, and that was said
  bool fails_ = false;  // the last one failed, and that was said
  bool closed_ = false;
  std::shared_ptr<Shared> shared_;  // what the thread of a write shares with us
};

}  // namespace ddprun::rendezvous
