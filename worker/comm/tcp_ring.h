#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/types.h"
#include "common/unique_fd.h"
#include "worker/comm/fork_mark.h"
#include "worker/comm/key_value.h"
#include "worker/comm/operation.h"

namespace ddprun::comm {

struct RingPlace {
  std::string key;         // "/ddprun/tcp/<restart count>/<ring>"; member i publishes key/i
  int index = 0;           // our place in the ring
  std::vector<int> ranks;  // the job's rank of each place
  std::string address;     // where the others reach us, numeric
  int connections = 2;     // for data, to the next member
};

// Members of a ring over TCP; each sends to the next and receives from the one before.
//
// Connections to the next member: one for control and `connections` for data. The store holds, for each member,
// "host:port token"; a new connection begins with
//   u64 magic, u32 version, 32 bytes token, u32 index of the sender, u32 connection number (0 = control)
// and is answered with one byte 1. Frames on the control connection, in both directions, little endian:
//   u8 type, u32 size, payload
//   1 signature   u64 sequence, u64 count, u8 kind, u8 reduction, u8 dtype, i32 root: before the data of each operation
//   2 abort       i32 Errc, text
//   3 bye         u64 collectives done: this member has returned
//   4 ping        empty: is your process running, and what do you wait for? (asked at a deadline)
//   5 pong        u64 sequence of its operation, u64 bytes of it sent to the next so far, u8 1: it waits for the one
//   before
// Data connections carry elements only; both sides know what comes.
class TcpRing {
 public:
  // Errors: timed_out naming the rank that did not come, refused, system.
  static Result<std::unique_ptr<TcpRing>> connect(KeyValue& store, const RingPlace& place, TimePoint deadline);
  ~TcpRing();
  TcpRing(const TcpRing&) = delete;
  TcpRing& operator=(const TcpRing&) = delete;

  int index() const { return index_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return ranks_[static_cast<std::size_t>(index_)]; }

  struct Part {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
  };

  // For a caller that has work of its own to do on the tensor piece by piece while others travel. Both get a range of
  // `data` in bytes; every byte is in exactly one call of each.
  struct Hooks {
    std::function<void(std::size_t offset, std::size_t size)> prepare;  // before it is sent or added to
    std::function<void(std::size_t offset, std::size_t size)> finish;   // it holds the result
  };

  // All of these compare op.signature with the neighbour's before they use what it sends, and end by op.deadline() (and
  // the moment that it takes to find out who is late), also when bytes trickle in. `divisor` > 1: divides the finished
  // sum.
  Result<void> all_reduce(Operation& op, std::byte* data, std::size_t count, int divisor, const Hooks* hooks = nullptr);
  // parts[i]: element ranges of one tensor, the same on every member; parts[index] is reduced into `result`; the others
  // are overwritten.
  Result<void> reduce_scatter(Operation& op, std::span<const Part> parts, std::byte* result, int divisor);
  // parts[i] holds member i's bytes on member i; filled in everywhere.
  Result<void> all_gather(Operation& op, std::span<const Part> parts);
  Result<void> broadcast(Operation& op, std::byte* data, std::size_t size_bytes, int root_index);
  Result<void> barrier(Operation& op);
  Result<void> agree(Operation& op);  // only compares signatures

  // Publishes the first `error` to both neighbours and returns what is to be told (an earlier verdict wins).
  Error fail(const Error& error);
  void abort(const std::string& reason);
  // A verdict of ours or one that a neighbour has sent by now.
  std::optional<Error> news();
  bool usable_here() const { return fork_mark_.here(); }
  // Called about every 20 ms while waiting.
  void set_watch(std::function<std::optional<Error>()> watch) { watch_ = std::move(watch); }

 private:
  class Run;
  // The last call on a socket found nothing to do, by errno.
  static bool would_block();
  // How far this member is in its operation.
  struct Progress {
    std::uint64_t sequence = 0, sent = 0, received = 0, wanted = 0;  // bytes
    bool starved = false;                                            // nothing to send before more comes
  };
  struct Neighbour {
    int rank = 0;
    UniqueFd control;
    std::vector<UniqueFd> data;
    std::string input;  // bytes of frames that are not complete
    std::atomic<bool> closed{false};
    std::optional<std::uint64_t> left_after;
    bool pinged = false, answered = false;
    Progress told;                     // by its answer
    std::deque<Signature> signatures;  // that came and were not used yet: it can be some operations ahead
  };
  // One hop of an algorithm: send a piece to the next member while one comes from the previous one. What comes in
  // step s goes out in step s + 1, segment by segment.
  struct Step {
    Part send, receive;
    bool reduces = false;
    bool final = false;           // what this step receives is the result
    std::byte* result = nullptr;  // reduces: where the sum goes; nullptr = into `receive`
    int divisor = 1;
  };

  TcpRing(const RingPlace& place);
  // Looks for a verdict and tells the next member what this operation is.
  Result<void> begin(Operation& op);
  Result<void> run(Operation& op, std::span<const Step> steps, std::byte* base = nullptr, const Hooks* hooks = nullptr);
  // Whether the previous member has said that it is in the same operation. Errors: it is in another one, or gone.
  Result<bool> matches(Operation& op);
  // Waits up to 20 ms for control frames, a wake-up or the descriptors in `more`; then looks at the deadline.
  Result<void> idle(Operation& op, std::span<const pollfd> more);
  Result<void> read_control(Neighbour& from);
  Result<void> handle_frame(Neighbour& from, std::uint8_t type, std::string_view payload);
  void send_frame(Neighbour& to, std::uint8_t type, std::string_view payload);
  Error gone(Operation& op, const Neighbour& who, std::string_view how);
  Result<void> check_deadline(Operation& op);
  std::optional<Error> verdict() const;

  int index_ = 0;
  std::vector<int> ranks_;
  Neighbour next_, previous_;
  UniqueFd wake_;  // eventfd: abort() from another thread
  ForkMark fork_mark_;
  std::function<std::optional<Error>()> watch_;
  std::vector<std::vector<std::byte>> scratch_;  // one piece for each data connection
  std::vector<pollfd> polls_;
  Progress progress_;
  std::uint64_t done_ = 0;  // operations ended
  TimePoint pinged_at_{};

  mutable std::mutex mutex_;  // verdict_ and writing to control connections
  std::optional<Error> verdict_;
};

}  // namespace ddprun::comm
